package android.app;

/** Replaces Android's class for tests on a JVM: how a process ended. */
public final class ApplicationExitInfo {
    public static final int REASON_UNKNOWN = 0;
    public static final int REASON_SIGNALED = 2;
    public static final int REASON_LOW_MEMORY = 3;
    public static final int REASON_CRASH_NATIVE = 5;

    private final int reason;
    private final int status;

    ApplicationExitInfo(int reason, int status) {
        this.reason = reason;
        this.status = status;
    }

    public int getReason() {
        return reason;
    }

    public long getTimestamp() {
        return System.currentTimeMillis();
    }

    public int getStatus() {
        return status;
    }
}
