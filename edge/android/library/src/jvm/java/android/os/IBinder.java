package android.os;

/** Replaces Android's interface for tests on a JVM: an object that may be in another process. */
public interface IBinder {
    int FIRST_CALL_TRANSACTION = 1;

    boolean transact(int code, Parcel data, Parcel reply, int flags) throws RemoteException;

    boolean pingBinder();
}
