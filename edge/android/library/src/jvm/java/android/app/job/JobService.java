package android.app.job;

import android.app.Service;

import java.util.concurrent.Semaphore;

/** Replaces Android's class for tests on a JVM. It counts the jobs that have finished. */
public abstract class JobService extends Service {
    public final Semaphore finished = new Semaphore(0);

    public abstract boolean onStartJob(JobParameters job);

    public abstract boolean onStopJob(JobParameters job);

    public final void jobFinished(JobParameters job, boolean reschedule) {
        finished.release();
    }
}
