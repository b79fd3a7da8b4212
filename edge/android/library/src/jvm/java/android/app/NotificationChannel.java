package android.app;

/** A channel's name. */
public class NotificationChannel {
    final String id;

    public NotificationChannel(String id, CharSequence name, int importance) {
        this.id = id;
    }
}
