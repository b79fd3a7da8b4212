package android.content;

import android.os.IBinder;

/** Replaces Android's interface for tests on a JVM. */
public interface ServiceConnection {
    void onServiceConnected(ComponentName name, IBinder service);

    void onServiceDisconnected(ComponentName name);
}
