package org.sedge.edge.backends;


import java.io.File;
import java.io.IOException;

/** Starts the processes in which programs are tried out. How this is done depends on the operating system. */
public interface Sandbox {
    /**
     * Identifies the installation and the operating system. A trial's verdict holds only for these, because a trial
     * elsewhere may end differently.
     */
    String host();

    /**
     * Requests a process that can run the programs of the bundle in a folder ({@link Tryout}), without waiting for it
     * to start.
     *
     * @param backend its class is instantiated in the new process
     * @throws IOException if the system refuses; the message says why
     */
    Trial begin(File folder, Backend backend) throws IOException;

    /** A process in which programs are tried out. */
    interface Trial extends AutoCloseable {
        /**
         * Runs one program on one of the {@link Tryout#SAMPLES}, and waits until it ends, however long that takes.
         *
         * @return true if any program has been loaded so far
         * @throws Crash if the process ends while the program runs
         * @throws IOException if the process cannot start; the message says why
         */
        boolean run(String program, int sample) throws IOException, Crash;

        /** Ends the process. If another thread is in {@link #run}, that call then fails. */
        @Override
        void close();
    }

    /** Thrown when a program has crashed its process. The message says how, for example "signal 11". */
    @SuppressWarnings("serial")
    final class Crash extends Exception {
        /** True if another trial would end in the same way; false if the cause is a lack of memory or unknown. */
        public final boolean lasting;

        public Crash(String how, boolean lasting) {
            super(how);
            this.lasting = lasting;
        }
    }
}
