package org.sedge.executorch;

import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.backends.Tensor;
import org.sedge.edge.host.Machine;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.Arrays;

/**
 * Runs the programs of .pte files in ExecuTorch, on the JVM of a PC or Raspberry Pi. It uses the same libraries as the
 * Python agent's backend, so the outputs have the same bytes.
 */
public final class JvmExecutorch implements Backend {
    /** The system property that names the library for {@link #JvmExecutorch()}. */
    public static final String LIBRARY = "sedge.executorch";

    // The library in use. It is static, because all programs in the process share their threads.
    private static File loaded;
    private static int threads;

    private final long maxBytes;

    /**
     * Creates a backend that uses one thread, at most 3/4 of the machine's memory, and the library that the system
     * property {@value #LIBRARY} names.
     */
    public JvmExecutorch() throws BackendException {
        // The limit makes a program that needs more memory fail without affecting others, as in the Python agent.
        this(new File(System.getProperty(LIBRARY, "libsedge_executorch_jni.so")), 1,
                Machine.memoryMb() * 1_000_000 * 3 / 4);
    }

    /**
     * Loads the library if it is not loaded yet.
     *
     * @param library libsedge_executorch_jni.so, which {@code edge/android/build.py --jni} builds
     * @param threads the number of threads, the same in all calls
     * @param maxBytes the maximum memory that a program may plan for its intermediate results; 0 for no limit
     * @throws BackendException if the library cannot be loaded, or if an earlier call used a different library or
     *     number of threads
     */
    public JvmExecutorch(File library, int threads, long maxBytes) throws BackendException {
        begin(library.getAbsoluteFile(), threads);
        this.maxBytes = maxBytes;
    }

    private static synchronized void begin(File library, int wanted) throws BackendException {
        if (loaded == null) {
            try {
                System.load(library.getPath());
            } catch (UnsatisfiedLinkError error) {
                throw new BackendException("executorch: " + error.getMessage(), error);
            }
            Native.begin(wanted);
            loaded = library;
            threads = wanted;
        }
        if (!loaded.equals(library) || threads != wanted) {
            throw new BackendException("executorch: found " + library + " and " + wanted + " threads, expected "
                    + loaded + " and " + threads + ", as for this process's other programs");
        }
    }

    @Override
    public String name() {
        return "executorch";
    }

    @Override
    public Program load(File file, String method) throws BackendException {
        try {
            byte[] bytes = Files.readAllBytes(file.toPath());
            ByteBuffer data = ByteBuffer.allocateDirect(bytes.length);
            data.put(bytes);
            return new Method(data, method, maxBytes);
        } catch (IOException error) {
            throw new BackendException("executorch: " + error, error);
        } catch (BackendException error) {
            throw new BackendException("executorch: " + file.getName() + ": " + error.getMessage(), error);
        }
    }

    /** The type and shape that a program declares for an input or output. */
    private static final class Slot {
        final Tensor.Type type;
        final long[] shape;

        Slot(int[] found, String what) throws BackendException {
            type = type(found[0]);
            shape = new long[found.length - 1];
            long bytes = type.size;
            for (int i = 0; i < shape.length; i++) {
                shape[i] = found[i + 1];
                if (shape[i] < 0 || bytes > Integer.MAX_VALUE / Math.max(1, shape[i])) {
                    throw new BackendException(what + ": expected at most 2.1 GB");
                }
                bytes *= shape[i];
            }
        }

        boolean fits(Tensor tensor) {
            return tensor.type() == type && Arrays.equals(tensor.shape(), shape);
        }
    }

    private static final class Method implements Program {
        private final String name;
        private final Slot[] inputs;
        private final Slot[] outputs;
        private long file;
        private long program;

        Method(ByteBuffer data, String name, long maxBytes) throws BackendException {
            this.name = name;
            file = Native.open(data);
            boolean loaded = false;
            try {
                program = Native.load(file, name, maxBytes);
                inputs = slots(false);
                outputs = slots(true);
                loaded = true;
            } finally {
                if (!loaded) {
                    close();
                }
            }
        }

        private Slot[] slots(boolean made) throws BackendException {
            Slot[] slots = new Slot[Native.count(program, made)];
            for (int i = 0; i < slots.length; i++) {
                slots[i] = new Slot(Native.tensor(program, made, i), where(made ? "output " : "input ", i));
            }
            return slots;
        }

        private String where(String what, int index) {
            return "method " + name + ", " + what + index;
        }

        @Override
        public Tensor[] run(Tensor... given) throws BackendException {
            if (program == 0) {
                throw new BackendException("executorch: method " + name + " has been closed");
            }
            if (given.length != inputs.length) {
                throw new BackendException("executorch: method " + name + ": found " + given.length
                        + " inputs, expected " + inputs.length);
            }
            ByteBuffer[] from = new ByteBuffer[given.length];
            for (int i = 0; i < given.length; i++) {
                if (!inputs[i].fits(given[i])) {
                    throw new BackendException("executorch: " + where("input ", i) + ": found "
                            + text(given[i].type(), given[i].shape()) + ", expected "
                            + text(inputs[i].type, inputs[i].shape));
                }
                from[i] = given[i].data();
            }
            Tensor[] made = new Tensor[outputs.length];
            ByteBuffer[] to = new ByteBuffer[outputs.length];
            for (int i = 0; i < made.length; i++) {
                made[i] = Tensor.zeros(outputs[i].type, outputs[i].shape);
                to[i] = made[i].data();
            }
            Native.run(program, from, to);
            return made;
        }

        @Override
        public void close() {
            if (program != 0) {
                Native.free(program);
                program = 0;
            }
            if (file != 0) {
                Native.close(file);
                file = 0;
            }
        }
    }

    private static String text(Tensor.Type type, long[] shape) {
        return type + " " + Arrays.toString(shape);
    }

    /** Converts ExecuTorch's ScalarType to ours. */
    private static Tensor.Type type(int scalarType) throws BackendException {
        switch (scalarType) {
            case 0:
                return Tensor.Type.UINT8;
            case 3:
                return Tensor.Type.INT32;
            case 4:
                return Tensor.Type.INT64;
            case 6:
                return Tensor.Type.FLOAT32;
            case 11:
                return Tensor.Type.BOOL;
            default:
                throw new BackendException("type " + scalarType + " is not supported");
        }
    }
}
