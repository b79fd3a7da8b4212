package android.os;

/** Replaces Android's class for tests on a JVM. The system property {@code sedge.api} is the API level. */
public final class Build {
    public static final String FINGERPRINT = "stand-in/1";

    private Build() {}

    public static final class VERSION {
        public static final int SDK_INT = Integer.getInteger("sedge.api", 30);

        private VERSION() {}
    }
}
