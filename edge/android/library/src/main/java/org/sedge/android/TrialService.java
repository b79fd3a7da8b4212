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
 * Tries out a bundle's programs before any other process of the app runs them. The library's manifest assigns it to a
 * separate process, to which {@link TrialProcess} binds.
 */
public final class TrialService extends Service {
    /** Requests the id of the service's process. */
    static final int PID = IBinder.FIRST_CALL_TRANSACTION;
    /**
     * Requests a run of a program. The arguments are the bundle's folder, the backend's class, the program and the
     * number of a sample. The answer is 1 if any program has been loaded so far, and 0 otherwise. If no program can be
     * tried, it is {@link #FAILED}, followed by the reason.
     */
    static final int RUN = PID + 1;
    static final int FAILED = -1;

    /**
     * Whether the requests come from another process. They do not if an app's manifest lacks {@code android:process}.
     */
    private volatile boolean apart;

    @Override
    public IBinder onBind(Intent intent) {
        return new Runs();
    }

    /** Ends the process, so that every trial gets a new one, and none outlives the process that requested it. */
    @Override
    public void onDestroy() {
        if (apart) {
            Process.killProcess(Process.myPid());
        }
    }

    /** Runs programs on the binder's threads, which leaves the main thread free to end the process. */
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
