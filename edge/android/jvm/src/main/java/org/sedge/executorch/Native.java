package org.sedge.executorch;

import org.sedge.edge.backends.BackendException;

import java.nio.ByteBuffer;

/**
 * The functions of libsedge_executorch_jni.so. They must only be called by {@link JvmExecutorch}, which checks the
 * arguments.
 */
final class Native {
    private Native() {}

    /** Sets the number of threads for all programs. Call it once per process, before anything else. */
    static native void begin(int threads) throws BackendException;

    /** Copies a .pte file from a direct buffer. Returns the file's handle. */
    static native long open(ByteBuffer data) throws BackendException;

    static native void close(long file);

    /**
     * Loads a method and returns its handle.
     *
     * @param maxBytes the maximum planned memory in bytes; 0 for no limit
     */
    static native long load(long file, String method, long maxBytes) throws BackendException;

    static native void free(long program);

    static native int count(long program, boolean outputs);

    /** Returns the type of an input or output, followed by its extents. */
    static native int[] tensor(long program, boolean outputs, int index) throws BackendException;

    /** Runs a method. The direct buffers must have exactly the sizes of its tensors. */
    static native void run(long program, ByteBuffer[] inputs, ByteBuffer[] outputs) throws BackendException;
}
