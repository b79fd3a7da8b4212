package android.app.job;

import android.content.ComponentName;

/** Replaces Android's class for tests on a JVM. It describes a job's conditions as text. */
public class JobInfo {
    public static final int NETWORK_TYPE_ANY = 1;
    public static final int NETWORK_TYPE_UNMETERED = 2;

    final int id;
    final String text;

    private JobInfo(int id, String text) {
        this.id = id;
        this.text = text;
    }

    public static final class Builder {
        private final int id;
        private final StringBuilder text;

        public Builder(int id, ComponentName service) {
            this.id = id;
            text = new StringBuilder(service.name);
        }

        public Builder setRequiresCharging(boolean charging) {
            return said(charging, "charging");
        }

        public Builder setRequiredNetworkType(int type) {
            return said(true, type == NETWORK_TYPE_UNMETERED ? "unmetered" : "any network");
        }

        public Builder setRequiresDeviceIdle(boolean idle) {
            return said(idle, "idle");
        }

        public Builder setPeriodic(long millis) {
            return said(true, "every " + millis / 1000 + " s");
        }

        public Builder setPersisted(boolean persisted) {
            return said(persisted, "over restarts");
        }

        public Builder setOverrideDeadline(long millis) {
            return said(true, "within " + millis + " ms");
        }

        public JobInfo build() {
            return new JobInfo(id, text.toString());
        }

        private Builder said(boolean whether, String what) {
            text.append(whether ? ", " + what : "");
            return this;
        }
    }
}
