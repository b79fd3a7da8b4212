package android.app;

import android.content.Context;

/** Declares the methods that we call; some were added in API 26. Used only for compiling. */
public class Notification {
    public static class Builder {
        public Builder(Context context, String channelId) {
            throw new AssertionError("stub");
        }

        public Builder setSmallIcon(int icon) {
            throw new AssertionError("stub");
        }

        public Builder setContentTitle(CharSequence title) {
            throw new AssertionError("stub");
        }

        public Builder setContentText(CharSequence text) {
            throw new AssertionError("stub");
        }

        public Builder setContentIntent(PendingIntent intent) {
            throw new AssertionError("stub");
        }

        public Builder setOngoing(boolean ongoing) {
            throw new AssertionError("stub");
        }

        public Notification build() {
            throw new AssertionError("stub");
        }
    }
}
