package org.sedge.android;

import android.app.job.JobInfo;
import android.app.job.JobScheduler;
import android.content.ComponentName;
import android.content.Context;

/** When a phone trains. Android keeps the job over restarts, and holds the phone awake while it runs. */
public final class Conditions {
    private static final int REGULAR = 0x5ed6e;
    private static final int AT_ONCE = REGULAR + 1;

    /** Only on a charger. */
    public boolean charging = true;
    /** Only on a network that costs nothing by volume. */
    public boolean unmetered = true;
    /** Only while nobody uses the phone. */
    public boolean idle = true;
    /** How often the device asks its coordinator for work, in milliseconds; Android takes 15 minutes at least. */
    public long everyMillis = 60 * 60 * 1000;

    /** Lets the service train under these conditions from now on, in place of earlier ones. */
    public void schedule(Context context, Class<? extends TrainingService> service) {
        int network = unmetered ? JobInfo.NETWORK_TYPE_UNMETERED : JobInfo.NETWORK_TYPE_ANY;
        schedule(context, new JobInfo.Builder(REGULAR, new ComponentName(context, service))
                .setRequiresCharging(charging)
                .setRequiredNetworkType(network)
                .setRequiresDeviceIdle(idle)
                .setPeriodic(everyMillis)
                .setPersisted(true)
                .build());
    }

    /** Trains once as soon as there is any network, whatever the conditions: a person has asked for it. */
    public static void trainNow(Context context, Class<? extends TrainingService> service) {
        schedule(context, new JobInfo.Builder(AT_ONCE, new ComponentName(context, service))
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
                .setOverrideDeadline(0)
                .build());
    }

    /** Trains no more until it is scheduled again; a training that runs ends at its next step. */
    public static void cancel(Context context) {
        scheduler(context).cancel(REGULAR);
        scheduler(context).cancel(AT_ONCE);
    }

    private static void schedule(Context context, JobInfo job) {
        if (scheduler(context).schedule(job) != JobScheduler.RESULT_SUCCESS) {
            throw new IllegalStateException("Android refused the job; is the service in the manifest?");
        }
    }

    private static JobScheduler scheduler(Context context) {
        return (JobScheduler) context.getSystemService(Context.JOB_SCHEDULER_SERVICE);
    }
}
