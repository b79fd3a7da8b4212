package org.sedge.executorch;

import org.sedge.edge.backends.BackendException;

import java.nio.ByteBuffer;

/** The functions of libsedge_executorch_jni.so; nobody but {@link JvmExecutorch} calls them, who checks arguments. */
final class Native {
    private Native() {}

    /** Once in a process, before anything else: the threads of all programs. */
    static native void begin(int threads) throws BackendException;

    /** A .pte file's handle; the bytes, in a direct buffer, are copied. */
    static native long open(ByteBuffer data) throws BackendException;

    static native void close(long file);

    /** A method's handle, with at most so many bytes of planned memory; 0: any amount. */
    static native long load(long file, String method, long maxBytes) throws BackendException;

    static native void free(long program);

    static native int count(long program, boolean outputs);

    /** Type and extents of an input or output. */
    static native int[] tensor(long program, boolean outputs, int index) throws BackendException;

    /** Runs on direct buffers of exactly the tensors' sizes. */
    static native void run(long program, ByteBuffer[] inputs, ByteBuffer[] outputs) throws BackendException;
}
