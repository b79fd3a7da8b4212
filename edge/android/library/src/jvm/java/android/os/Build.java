package android.os;

/** A system whose API is the system property {@code sedge.api}. */
public final class Build {
    public static final String FINGERPRINT = "stand-in/1";

    private Build() {}

    public static final class VERSION {
        public static final int SDK_INT = Integer.getInteger("sedge.api", 30);

        private VERSION() {}
    }
}
