package android;

/** Replaces Android's class for tests on a JVM: the ids of built-in icons. */
public final class R {
    private R() {}

    public static final class drawable {
        public static final int stat_notify_sync = 1;

        private drawable() {}
    }
}
