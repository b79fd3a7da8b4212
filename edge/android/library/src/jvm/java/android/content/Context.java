package android.content;

import android.app.NotificationManager;
import android.content.pm.PackageManager;

import java.io.File;

/** Of Android what a job uses, on a JVM: the app's private folder is the system property {@code sedge.folder}. */
public class Context {
    public static final String NOTIFICATION_SERVICE = "notification";

    public File getNoBackupFilesDir() {
        return new File(System.getProperty("sedge.folder"));
    }

    public Object getSystemService(String name) {
        return new NotificationManager();
    }

    public PackageManager getPackageManager() {
        return new PackageManager();
    }

    public String getPackageName() {
        return "org.sedge.test";
    }
}
