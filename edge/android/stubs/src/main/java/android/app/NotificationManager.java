package android.app;

/** Declares the methods that we call; some were added in API 26. Used only for compiling. */
public class NotificationManager {
    public static final int IMPORTANCE_LOW = 2;

    public void createNotificationChannel(NotificationChannel channel) {
        throw new AssertionError("stub");
    }

    public void notify(int id, Notification notification) {
        throw new AssertionError("stub");
    }

    public void cancel(int id) {
        throw new AssertionError("stub");
    }
}
