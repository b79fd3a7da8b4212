package android.app;

/** Of API 26; compile-only, because the framework jar is that of API 23. */
public final class NotificationChannel {
    public NotificationChannel(String id, CharSequence name, int importance) {
        throw new AssertionError("stub");
    }
}
