package android;

/** Numbers of Android's own pictures. */
public final class R {
    private R() {}

    public static final class drawable {
        public static final int stat_notify_sync = 1;

        private drawable() {}
    }
}
