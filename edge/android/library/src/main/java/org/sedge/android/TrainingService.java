package org.sedge.android;

import android.app.job.JobParameters;
import android.app.job.JobService;

import org.sedge.edge.Agent;
import org.sedge.edge.AgentConfig;
import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.backends.Backend;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The Android job in which a phone works for its fleet. It connects, trains as ordered, sends the update, and ends.
 *
 * <p>An app subclasses it to provide the examples, and declares the subclass in its manifest with the permission
 * {@code android.permission.BIND_JOB_SERVICE}. {@link Conditions} decide when it runs. Android gives a job about ten
 * minutes. Training that takes longer continues from its last checkpoint in the next job.
 */
public abstract class TrainingService extends JobService {
    private static final long LONGEST_MILLIS = 9 * 60 * 1000;
    // The job that is running. It is static, because Android creates a new service for each job, but two agents must
    // not share a state folder.
    private static final AtomicReference<Work> RUNNING = new AtomicReference<Work>();

    /** Returns the examples that this phone trains on. Called for each job, on a separate thread. */
    protected abstract Examples examples() throws IOException, SedgeException;

    /** Returns the runtimes to use, in order of preference. */
    protected List<Backend> backends() {
        return Backends.installed();
    }

    @Override
    public boolean onStartJob(JobParameters job) {
        Work work = new Work(job);
        if (!RUNNING.compareAndSet(null, work)) {
            return false;
        }
        new Thread(work, "sedge").start();
        return true;
    }

    @Override
    public boolean onStopJob(JobParameters job) {
        Work work = RUNNING.get();
        if (work != null && work.job.getJobId() == job.getJobId()) { // compare ids, because Android passes a copy
            work.stop();
        }
        return true;
    }

    private final class Work implements Runnable {
        final JobParameters job;
        private Agent agent;
        private boolean stopped;

        Work(JobParameters job) {
            this.job = job;
        }

        synchronized void stop() {
            stopped = true;
            if (agent != null) {
                agent.stop();
            }
        }

        private synchronized void begin(Agent agent) {
            this.agent = agent;
            if (stopped) {
                agent.stop();
            }
        }

        @Override
        public void run() {
            RoundLog log = Membership.log(TrainingService.this);
            try (TrainingNotice notice = new TrainingNotice(TrainingService.this)) {
                log.say(train(log, notice));
            } catch (SedgeException error) {
                log.say(error.getMessage());
            } catch (OutOfMemoryError error) {
                log.say("The examples do not fit into this phone's memory.");
            } catch (IOException | RuntimeException | Error error) { // otherwise Android would end the app
                log.say("Training failed: " + error);
            } finally {
                RUNNING.set(null);
                jobFinished(job, false);
            }
        }

        private String train(RoundLog log, TrainingNotice notice) throws SedgeException, IOException {
            AgentConfig config = Membership.config(TrainingService.this);
            if (config == null) {
                return "This phone has not joined a fleet.";
            }
            List<Backend> backends = backends();
            if (backends.isEmpty()) {
                return Backends.NONE;
            }
            log.say("Connecting to " + config.url + " …");
            Progress progress = new Progress(log, notice);
            Agent agent = new Agent(config, Membership.state(TrainingService.this, config), backends,
                    new TrialProcess(TrainingService.this), examples(), progress);
            begin(agent);
            return progress.ended(agent.runUntilIdle(LONGEST_MILLIS));
        }
    }
}
