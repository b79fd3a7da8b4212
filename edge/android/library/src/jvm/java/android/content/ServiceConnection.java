package android.content;

import android.os.IBinder;

/** Hears of a service that it is bound to. */
public interface ServiceConnection {
    void onServiceConnected(ComponentName name, IBinder service);

    void onServiceDisconnected(ComponentName name);
}
