package android.os;

/**
 * Replaces Android's class for tests on a JVM: an object that other processes can call, through {@link OtherProcess}.
 */
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
