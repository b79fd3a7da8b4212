package android.app.job;

/** Replaces Android's class for tests on a JVM. Like Android, callers create a new object for each call about a job. */
public class JobParameters {
    private final int id;

    public JobParameters(int id) {
        this.id = id;
    }

    public int getJobId() {
        return id;
    }
}
