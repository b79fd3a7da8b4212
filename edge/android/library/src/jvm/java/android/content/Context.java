package android.content;

import android.app.NotificationManager;
import android.app.job.JobScheduler;
import android.content.pm.PackageManager;

import java.io.File;

/** Of Android what a job uses, on a JVM: the app's private folder is the system property {@code sedge.folder}. */
public class Context {
    public static final String NOTIFICATION_SERVICE = "notification";
    public static final String JOB_SCHEDULER_SERVICE = "jobscheduler";

    public File getNoBackupFilesDir() {
        return new File(System.getProperty("sedge.folder"));
    }

    public Object getSystemService(String name) {
        return name.equals(JOB_SCHEDULER_SERVICE) ? new JobScheduler() : new NotificationManager();
    }

    public PackageManager getPackageManager() {
        return new PackageManager();
    }

    public String getPackageName() {
        return "org.sedge.test";
    }
}
