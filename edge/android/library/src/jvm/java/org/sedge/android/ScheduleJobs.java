package org.sedge.android;

import android.app.job.JobScheduler;
import android.content.Context;

/** Schedules and cancels jobs. After each call, prints the jobs that Android would keep. */
public final class ScheduleJobs {
    private ScheduleJobs() {}

    public static void main(String[] words) {
        Context context = new Context();
        Conditions conditions = new Conditions();
        conditions.schedule(context, RunJobs.class);
        System.out.println(JobScheduler.jobs());
        conditions = conditions.charging(false).idle(false).unmetered(false).every(900_000);
        conditions.schedule(context, RunJobs.class);
        System.out.println(JobScheduler.jobs());
        Conditions.trainNow(context, RunJobs.class);
        System.out.println(JobScheduler.jobs());
        Conditions.cancel(context);
        System.out.println(JobScheduler.jobs());
        JobScheduler.refuses = true;
        try {
            Conditions.trainNow(context, RunJobs.class);
        } catch (IllegalStateException error) {
            System.out.println(error.getMessage());
        }
    }
}
