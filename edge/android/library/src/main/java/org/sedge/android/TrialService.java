package org.sedge.android;

import android.app.Service;
import android.content.Intent;
import android.os.Binder;
import android.os.IBinder;
import android.os.Parcel;
import android.os.Process;
import android.os.RemoteException;

import org.sedge.edge.backends.Tryout;

import java.io.File;

/**
 * Runs a bundle's programs before any other process of the app does. The library's manifest puts it into a separate
 * process, and {@link TrialProcess} binds to it.
 */
public final class TrialService extends Service {
    /** A request whose answer is the id of the process. */
    static final int PID = IBinder.FIRST_CALL_TRANSACTION;
    /**
     * A request with the bundle's folder, the backend's class, a program and the number of a sample. The answer is
     * whether any program could be loaded so far, as 1 or 0; or {@link #FAILED} and why no program can be tried.
     */
    static final int RUN = PID + 1;
    static final int FAILED = -1;

    /** Whether another process has requested a trial: a manifest may lack {@code android:process}. */
    private volatile boolean apart;

    @Override
    public IBinder onBind(Intent intent) {
        return new Runs();
    }

    /** Ends the process: every trial gets a fresh one, and none outlives the process that requested it. */
    @Override
    public void onDestroy() {
        if (apart) {
            Process.killProcess(Process.myPid());
        }
    }

    /** Runs programs on the binder's threads, so that the main thread can still end the process. */
    private final class Runs extends Binder {
        private Tryout tryout;

        @Override
        protected synchronized boolean onTransact(int code, Parcel request, Parcel answer, int flags)
                throws RemoteException {
            if (code == PID) {
                apart = Binder.getCallingPid() != Process.myPid();
                answer.writeInt(Process.myPid());
                return true;
            }
            if (code != RUN) {
                return super.onTransact(code, request, answer, flags);
            }
            try {
                String folder = request.readString();
                String backend = request.readString();
                if (tryout == null) {
                    tryout = new Tryout(new File(folder), backend);
                }
                answer.writeInt(tryout.run(request.readString(), request.readInt()) ? 1 : 0);
            } catch (Exception | Error error) {
                answer.writeInt(FAILED);
                answer.writeString(error.getMessage() == null ? error.toString() : error.getMessage());
            }
            return true;
        }
    }
}
