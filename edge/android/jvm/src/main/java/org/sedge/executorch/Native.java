package org.sedge.executorch;

import org.sedge.edge.backends.BackendException;

import java.nio.ByteBuffer;

/** The functions of libsedge_executorch_jni.so; only {@link JvmExecutorch}, which checks arguments, calls them. */
final class Native {
    private Native() {}

    /** Sets the number of threads of all programs; call it once per process, before anything else. */
    static native void begin(int threads) throws BackendException;

    /** Returns a .pte file's handle; copies the bytes in the direct buffer. */
    static native long open(ByteBuffer data) throws BackendException;

    static native void close(long file);

    /** Returns a method's handle, with at most the given bytes of planned memory; 0: any amount. */
    static native long load(long file, String method, long maxBytes) throws BackendException;

    static native void free(long program);

    static native int count(long program, boolean outputs);

    /** The type and extents of an input or output. */
    static native int[] tensor(long program, boolean outputs, int index) throws BackendException;

    /** Runs a method on direct buffers of exactly the tensors' sizes. */
    static native void run(long program, ByteBuffer[] inputs, ByteBuffer[] outputs) throws BackendException;
}
