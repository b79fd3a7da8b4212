package android.os;

/** A call did not arrive, or its answer did not: the other process has ended. */
@SuppressWarnings("serial")
public class RemoteException extends Exception {
    RemoteException(Throwable cause) {
        super(cause);
    }
}
