package org.sedge.android;

import android.app.job.JobInfo;
import android.app.job.JobScheduler;
import android.content.ComponentName;
import android.content.Context;

/**
 * The conditions under which a phone trains. By default it trains once an hour, if it is on a charger and on an
 * unmetered network and nobody is using it. Android keeps the job across restarts, and keeps the phone awake while the
 * job runs.
 */
public final class Conditions {
    private static final int REGULAR = 0x5ed6e;
    private static final int AT_ONCE = REGULAR + 1;

    private final boolean charging;
    private final boolean unmetered;
    private final boolean idle;
    private final long everyMillis;

    /** Creates the default conditions. */
    public Conditions() {
        this(true, true, true, 60 * 60 * 1000);
    }

    private Conditions(boolean charging, boolean unmetered, boolean idle, long everyMillis) {
        this.charging = charging;
        this.unmetered = unmetered;
        this.idle = idle;
        this.everyMillis = everyMillis;
    }

    /** Returns a copy that does or does not require a charger. */
    public Conditions charging(boolean only) {
        return new Conditions(only, unmetered, idle, everyMillis);
    }

    /** Returns a copy that does or does not require an unmetered network. */
    public Conditions unmetered(boolean only) {
        return new Conditions(charging, only, idle, everyMillis);
    }

    /** Returns a copy that does or does not require that nobody is using the phone. */
    public Conditions idle(boolean only) {
        return new Conditions(charging, unmetered, only, everyMillis);
    }

    /** Returns a copy that asks the coordinator for work at this interval. Android's minimum is 15 minutes. */
    public Conditions every(long millis) {
        return new Conditions(charging, unmetered, idle, millis);
    }

    /** Schedules the service under these conditions, which replace any earlier ones. */
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

    /**
     * Trains once, as soon as a network is available. Other conditions are ignored, because the user has asked for it.
     */
    public static void trainNow(Context context, Class<? extends TrainingService> service) {
        schedule(context, new JobInfo.Builder(AT_ONCE, new ComponentName(context, service))
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY)
                .setOverrideDeadline(0)
                .build());
    }

    /** Stops training until it is scheduled again. A running job stops at its next training step. */
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
