package android.app.job;

import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;

/**
 * Replaces Android's class for tests on a JVM. It keeps the jobs of this process. If told to, it refuses them, as
 * Android does for a job without a service.
 */
public class JobScheduler {
    public static final int RESULT_FAILURE = 0;
    public static final int RESULT_SUCCESS = 1;
    public static boolean refuses;

    private static final Map<Integer, String> JOBS = new TreeMap<Integer, String>();

    public static Collection<String> jobs() {
        return JOBS.values();
    }

    public int schedule(JobInfo job) {
        if (refuses) {
            return RESULT_FAILURE;
        }
        JOBS.put(job.id, job.text);
        return RESULT_SUCCESS;
    }

    public void cancel(int id) {
        JOBS.remove(id);
    }
}
