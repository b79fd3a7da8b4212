package android.app.job;

/** Replaces Android's class for tests on a JVM. As on Android, each call about a job gets a new object. */
public class JobParameters {
    private final int id;

    public JobParameters(int id) {
        this.id = id;
    }

    public int getJobId() {
        return id;
    }
}
