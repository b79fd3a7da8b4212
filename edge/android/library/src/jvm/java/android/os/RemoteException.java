package android.os;

/** A call or its answer was lost, because the other process has ended. Replaces Android's class for tests on a JVM. */
@SuppressWarnings("serial")
public class RemoteException extends Exception {
    RemoteException(Throwable cause) {
        super(cause);
    }
}
