package android.os;

/** An object that other processes may call; {@link OtherProcess} carries the calls. */
public class Binder implements IBinder {
    static int callingPid = Process.myPid();

    public static int getCallingPid() {
        return callingPid;
    }

    @Override
    public final boolean transact(int code, Parcel data, Parcel reply, int flags) throws RemoteException {
        return onTransact(code, data, reply, flags);
    }

    protected boolean onTransact(int code, Parcel data, Parcel reply, int flags) throws RemoteException {
        return false;
    }

    @Override
    public boolean pingBinder() {
        return true;
    }
}
