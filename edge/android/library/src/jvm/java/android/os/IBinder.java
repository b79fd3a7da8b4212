package android.os;

/** An object that may live in another process. */
public interface IBinder {
    int FIRST_CALL_TRANSACTION = 1;

    boolean transact(int code, Parcel data, Parcel reply, int flags) throws RemoteException;

    boolean pingBinder();
}
