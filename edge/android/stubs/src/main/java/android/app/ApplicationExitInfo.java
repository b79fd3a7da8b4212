package android.app;

/** Declares the members that we use; the class was added in API 30. Used only for compiling. */
public final class ApplicationExitInfo {
    public static final int REASON_UNKNOWN = 0;
    public static final int REASON_SIGNALED = 2;
    public static final int REASON_LOW_MEMORY = 3;
    public static final int REASON_CRASH_NATIVE = 5;

    private ApplicationExitInfo() {}

    public int getReason() {
        throw new AssertionError("stub");
    }

    public long getTimestamp() {
        throw new AssertionError("stub");
    }

    public int getStatus() {
        throw new AssertionError("stub");
    }
}
