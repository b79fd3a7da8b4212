package android.app;

import android.content.Context;
import android.content.Intent;
import android.os.IBinder;

/**
 * Replaces Android's class for tests on a JVM. It refuses to run in the foreground every second time, as Android may
 * from API 31 on.
 */
public class Service extends Context {
    private boolean refuses = true;

    public IBinder onBind(Intent intent) {
        return null;
    }

    public void onDestroy() {}

    public final void startForeground(int id, Notification notification) {
        refuses = !refuses;
        if (refuses) {
            throw new IllegalStateException("startForeground() not allowed");
        }
        System.out.println("foreground: " + notification.text);
    }

    public void stopForeground(boolean remove) {}
}
