package android.app;

/** Replaces Android's class for tests on a JVM. It has only a name. */
public final class NotificationChannel {
    final String id;

    public NotificationChannel(String id, CharSequence name, int importance) {
        this.id = id;
    }
}
