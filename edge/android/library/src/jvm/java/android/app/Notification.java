package android.app;

import android.content.Context;

/** Replaces Android's class for tests on a JVM. It has only a text, and is refused if its channel was not created. */
public class Notification {
    final String text;

    Notification(String text) {
        this.text = text;
    }

    public static class Builder {
        private CharSequence text;

        public Builder(Context context, String channel) {
            if (!NotificationManager.CHANNELS.contains(channel)) {
                throw new IllegalArgumentException("no channel " + channel);
            }
        }

        public Builder setSmallIcon(int icon) {
            return this;
        }

        public Builder setContentTitle(CharSequence title) {
            return this;
        }

        public Builder setContentText(CharSequence text) {
            this.text = text;
            return this;
        }

        public Builder setContentIntent(PendingIntent intent) {
            return this;
        }

        public Builder setOngoing(boolean ongoing) {
            return this;
        }

        public Notification build() {
            return new Notification(text.toString());
        }
    }
}
