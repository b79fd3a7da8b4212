package android.app.job;

/** One job; Android gives each call a copy of its own. */
public class JobParameters {
    private final int id;

    public JobParameters(int id) {
        this.id = id;
    }

    public int getJobId() {
        return id;
    }
}
