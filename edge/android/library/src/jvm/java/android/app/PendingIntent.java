package android.app;

import android.content.Context;
import android.content.Intent;

/** For notifications that open something. */
public class PendingIntent {
    public static final int FLAG_IMMUTABLE = 1 << 26;

    public static PendingIntent getActivity(Context context, int code, Intent intent, int flags) {
        throw new AssertionError("nothing to open");
    }
}
