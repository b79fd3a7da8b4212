package android.app;

import java.util.HashSet;
import java.util.Set;

/** Replaces Android's class for tests on a JVM. It prints the notifications. */
public class NotificationManager {
    public static final int IMPORTANCE_LOW = 2;
    static final Set<String> CHANNELS = new HashSet<String>();

    public void createNotificationChannel(NotificationChannel channel) {
        CHANNELS.add(channel.id);
    }

    public void notify(int id, Notification notification) {
        System.out.println("notification: " + notification.text);
    }

    public void cancel(int id) {}
}
