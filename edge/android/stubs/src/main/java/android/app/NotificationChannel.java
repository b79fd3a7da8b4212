package android.app;

/**
 * Declares the members that we use; the class was added in API 26. Used only for compiling, because Debian's framework
 * jar has API 23.
 */
public final class NotificationChannel {
    public NotificationChannel(String id, CharSequence name, int importance) {
        throw new AssertionError("stub");
    }
}
