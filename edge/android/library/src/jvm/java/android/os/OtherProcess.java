package android.os;

import android.app.Service;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs a service in a separate JVM with this JVM's class path and options. The object in this process is the binder for
 * calling the service.
 */
public final class OtherProcess implements IBinder {
    private static final Map<Integer, java.lang.Process> BY_PID = new HashMap<Integer, java.lang.Process>();

    private final java.lang.Process process;
    private final ObjectOutputStream out;
    private final ObjectInputStream in;

    public OtherProcess(Class<?> service) throws IOException {
        List<String> words = new ArrayList<String>();
        words.add(System.getProperty("java.home") + "/bin/java");
        words.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        words.add("-XX:+SuppressFatalErrorMessage");
        words.add("-cp");
        words.add(System.getProperty("java.class.path"));
        words.add(OtherProcess.class.getName());
        words.add(service.getName());
        words.add(String.valueOf(Process.myPid()));
        process = new ProcessBuilder(words).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        out = new ObjectOutputStream(process.getOutputStream());
        out.flush();
        in = new ObjectInputStream(process.getInputStream());
        synchronized (BY_PID) {
            BY_PID.put(in.readInt(), process);
        }
    }

    /**
     * Waits for a process to end. Returns its exit status as a shell reports it, or -1 if this class did not start the
     * process.
     */
    public static int status(int pid) throws InterruptedException {
        synchronized (BY_PID) {
            return BY_PID.containsKey(pid) ? BY_PID.get(pid).waitFor() : -1;
        }
    }

    @Override
    @SuppressWarnings("unchecked") // main writes only lists of this type
    public synchronized boolean transact(int code, Parcel data, Parcel reply, int flags) throws RemoteException {
        try {
            out.writeInt(code);
            out.writeObject(data.values);
            out.flush();
            boolean known = in.readBoolean();
            reply.values = (List<Object>) in.readObject();
            return known;
        } catch (IOException | ClassNotFoundException error) {
            throw new RemoteException(error);
        }
    }

    @Override
    public boolean pingBinder() {
        return process.isAlive();
    }

    /** Ends the service, because nobody is bound to it any longer. */
    public void unbind() throws IOException {
        process.getOutputStream().close();
    }

    /**
     * Runs the service in the new JVM. The arguments are {@code SERVICE-CLASS CALLER}, where CALLER is the id of the
     * calling process.
     */
    @SuppressWarnings("unchecked") // transact writes only lists of this type
    public static void main(String[] words) throws Exception {
        Service service = (Service) Class.forName(words[0]).getDeclaredConstructor().newInstance();
        Binder.callingPid = Integer.parseInt(words[1]);
        PrintStream answers = System.out;
        System.setOut(System.err);
        ObjectOutputStream out = new ObjectOutputStream(answers);
        out.writeInt(Process.myPid());
        out.flush();
        InputStream given = System.in;
        IBinder binder = service.onBind(null);
        try (ObjectInputStream in = new ObjectInputStream(given)) {
            while (true) {
                int code = in.readInt();
                Parcel data = Parcel.obtain();
                data.values = (List<Object>) in.readObject();
                Parcel reply = Parcel.obtain();
                out.writeBoolean(binder.transact(code, data, reply, 0));
                out.writeObject(reply.values);
                out.flush();
            }
        } catch (EOFException unbound) {
            service.onDestroy();
        }
    }
}
