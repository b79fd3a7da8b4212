package android.app;

/** As it is from API 26 on: the methods that we call. Compile-only. */
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
