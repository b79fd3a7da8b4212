package org.sedge.android;

import android.app.ActivityManager;
import android.app.ApplicationExitInfo;
import android.content.ComponentName;
import android.content.Context;
import android.content.Intent;
import android.content.ServiceConnection;
import android.os.Build;
import android.os.IBinder;
import android.os.Parcel;
import android.os.Process;
import android.os.RemoteException;

import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.Sandbox;

import java.io.File;
import java.io.IOException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Tries out programs in the process of {@link TrialService}, which the library's manifest declares. */
public final class TrialProcess implements Sandbox {
    /** Even on a busy phone, Android starts a process within a few seconds, unless memory has run out. */
    private static final long START_MILLIS = 30_000;
    /** Android may record the reason for a process's end a moment after we notice that it has ended. */
    private static final long END_MILLIS = 5_000;
    private static final long LOOK_MILLIS = 50;
    private static final int SIGKILL = 9;

    private final Context context;
    private final long startMillis;

    public TrialProcess(Context context) {
        this(context, START_MILLIS);
    }

    TrialProcess(Context context, long startMillis) {
        this.context = context.getApplicationContext(); // the context of a job may end before its trial is closed
        this.startMillis = startMillis;
    }

    /** Identifies the installed version of the app, which includes its runtimes, and of Android. */
    @Override
    public String host() {
        File app = new File(context.getPackageCodePath());
        return app + " " + app.lastModified() + " " + Build.FINGERPRINT;
    }

    @Override
    public Trial begin(File folder, Backend backend) throws IOException {
        Connection connection = new Connection(folder.getPath(), backend.getClass().getName());
        boolean bound = false;
        try {
            bound = context.bindService(
                    new Intent(context, TrialService.class), connection, Context.BIND_AUTO_CREATE);
        } catch (SecurityException refused) {
            throw new IOException(refused.getMessage(), refused);
        } finally {
            if (!bound) {
                connection.close(); // Android keeps even a refused connection registered
            }
        }
        // If a process crashes twice within minutes, Android restarts it only for an app in the foreground.
        if (!bound) {
            throw new IOException("Android refused its service, expected " + TrialService.class.getName()
                    + " in the app's manifest, and at most one crash of it within minutes");
        }
        return connection;
    }

    private final class Connection implements ServiceConnection, Trial {
        private final String folder;
        private final String backend;
        private final CountDownLatch answered = new CountDownLatch(1);
        private volatile IBinder service;
        private final long began = System.currentTimeMillis();
        /** The id of the service's process; 0 until it is known. */
        private volatile int pid;

        Connection(String folder, String backend) {
            this.folder = folder;
            this.backend = backend;
        }

        @Override
        public void onServiceConnected(ComponentName name, IBinder binder) {
            if (service == null) { // otherwise Android has restarted the process, which is ignored
                service = binder;
                answered.countDown();
            }
        }

        @Override
        public void onServiceDisconnected(ComponentName name) {
            // Nothing to do here, because the waiting transaction fails.
        }

        @Override
        public boolean run(String program, int sample) throws IOException, Crash {
            Parcel request = Parcel.obtain();
            Parcel answer = Parcel.obtain();
            try {
                IBinder binder = connected();
                request.writeString(folder);
                request.writeString(backend);
                request.writeString(program);
                request.writeInt(sample);
                binder.transact(TrialService.RUN, request, answer, 0);
                int found = answer.readInt();
                if (found == TrialService.FAILED) {
                    throw new IOException(answer.readString());
                }
                return found > 0;
            } catch (RemoteException ended) {
                throw Build.VERSION.SDK_INT < 30 ? new Crash("the death of its process", false)
                        : Deaths.of(context, pid, began);
            } finally {
                request.recycle();
                answer.recycle();
            }
        }

        /** Waits until the service's process has started. Returns the service. */
        private IBinder connected() throws IOException {
            if (pid != 0) {
                return service;
            }
            Parcel request = Parcel.obtain();
            Parcel answer = Parcel.obtain();
            try {
                if (!answered.await(startMillis, TimeUnit.MILLISECONDS) || service == null) {
                    throw new IOException(
                            "Android did not start its process within " + startMillis / 1000 + " s");
                }
                service.transact(TrialService.PID, request, answer, 0);
                int found = answer.readInt();
                if (found == Process.myPid()) {
                    throw new IOException("the manifest gives " + TrialService.class.getName()
                            + " no process of its own, expected android:process=\":sedgetrial\"");
                }
                pid = found;
                return service;
            } catch (RemoteException | InterruptedException ended) {
                throw new IOException("its process ended at once", ended);
            } finally {
                request.recycle();
                answer.recycle();
            }
        }

        @Override
        public void close() {
            answered.countDown();
            context.unbindService(this);
            if (pid != 0) { // a program that never ends would keep its process alive
                Process.killProcess(pid);
                // Wait for the process to end, so that the next trial does not reach the old process.
                for (long waited = 0; waited < END_MILLIS && service.pingBinder(); waited += LOOK_MILLIS) {
                    pause();
                }
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(LOOK_MILLIS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Asks Android why a process ended. This is a separate class, because Android before API 30 does not have the
     * classes that it uses.
     */
    private static final class Deaths {
        private Deaths() {}

        /** @param since when the trial began; an older record belongs to an earlier process with the same id */
        static Crash of(Context context, int pid, long since) {
            ActivityManager manager = (ActivityManager) context.getSystemService(Context.ACTIVITY_SERVICE);
            for (long waited = 0; waited < END_MILLIS; waited += LOOK_MILLIS) {
                for (ApplicationExitInfo exit
                        : manager.getHistoricalProcessExitReasons(context.getPackageName(), pid, 1)) {
                    if (exit.getTimestamp() >= since
                            && exit.getReason() != ApplicationExitInfo.REASON_UNKNOWN) {
                        return of(exit);
                    }
                }
                pause();
            }
            return new Crash("the death of its process", false);
        }

        private static Crash of(ApplicationExitInfo exit) {
            int signal = exit.getStatus();
            switch (exit.getReason()) {
                case ApplicationExitInfo.REASON_CRASH_NATIVE:
                    return new Crash(signal == 0 ? "a crash" : "signal " + signal, true);
                case ApplicationExitInfo.REASON_SIGNALED:
                    return new Crash("signal " + signal, signal != SIGKILL);
                case ApplicationExitInfo.REASON_LOW_MEMORY:
                    return new Crash("its process killed for lack of memory", false);
                default:
                    return new Crash("the death of its process", false);
            }
        }
    }
}
