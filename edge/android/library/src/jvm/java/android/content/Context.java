package android.content;

import android.app.ActivityManager;
import android.app.NotificationManager;
import android.app.Service;
import android.app.job.JobScheduler;
import android.content.pm.PackageManager;
import android.os.OtherProcess;

import java.io.File;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/**
 * Replaces the parts of Android's class that a job uses, for tests on a JVM. The system property {@code sedge.folder}
 * is the app's private folder. The property {@code sedge.services} decides what happens when somebody binds to a
 * service: "missing" means that the manifest lacks the service, "denied" that binding is not allowed, "none" that its
 * process does not start, and "inside" that it runs in the app's own process. Otherwise the service gets a process of
 * its own.
 */
public class Context {
    public static final String NOTIFICATION_SERVICE = "notification";
    public static final String JOB_SCHEDULER_SERVICE = "jobscheduler";
    public static final String ACTIVITY_SERVICE = "activity";
    public static final int BIND_AUTO_CREATE = 1;

    private final Map<ServiceConnection, OtherProcess> bound = new HashMap<ServiceConnection, OtherProcess>();
    private final ActivityManager activities = new ActivityManager();

    public Context getApplicationContext() {
        return this;
    }

    public File getNoBackupFilesDir() {
        return new File(System.getProperty("sedge.folder"));
    }

    public String getPackageCodePath() {
        return "/data/app/base.apk";
    }

    public Object getSystemService(String name) {
        return name.equals(JOB_SCHEDULER_SERVICE) ? new JobScheduler()
                : name.equals(ACTIVITY_SERVICE) ? activities : new NotificationManager();
    }

    public PackageManager getPackageManager() {
        return new PackageManager();
    }

    public String getPackageName() {
        return "org.sedge.test";
    }

    public boolean bindService(Intent intent, ServiceConnection connection, int flags) {
        String services = System.getProperty("sedge.services", "");
        bound.put(connection, null);
        if (services.equals("denied")) {
            throw new SecurityException("Not allowed to bind to service");
        }
        try {
            if (services.equals("inside")) {
                Service service = (Service) intent.named.getDeclaredConstructor().newInstance();
                connection.onServiceConnected(null, service.onBind(intent));
            } else if (services.isEmpty()) {
                OtherProcess process = new OtherProcess(intent.named);
                System.out.println("a process for " + intent.named.getSimpleName());
                bound.put(connection, process);
                connection.onServiceConnected(null, process);
            }
        } catch (IOException | ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
        return !services.equals("missing");
    }

    public void unbindService(ServiceConnection connection) {
        if (!bound.containsKey(connection)) {
            throw new IllegalArgumentException("Service not registered: " + connection);
        }
        try {
            OtherProcess process = bound.remove(connection);
            if (process != null) {
                process.unbind();
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
