package org.sedge.edge.backends;


import java.io.File;
import java.io.IOException;

/** Starts the processes in which programs are tried, in a way that depends on the system. */
public interface Sandbox {
    /** Identifies the installation and the system: a verdict holds only there, as a trial elsewhere may end differently. */
    String host();

    /**
     * Requests a process that runs the programs of the bundle in a folder ({@link Tryout}), without waiting for it.
     *
     * @param backend the process makes an instance of its class
     * @throws IOException if the system refuses, with the reason
     */
    Trial begin(File folder, Backend backend) throws IOException;

    /** One such process. */
    interface Trial extends AutoCloseable {
        /**
         * Runs one program on one of {@link Tryout#SAMPLES}; waits for its end, however long that takes.
         *
         * @return whether any program could be loaded so far
         * @throws Crash if the process ends while the program runs
         * @throws IOException if the process cannot start, with the reason
         */
        boolean run(String program, int sample) throws IOException, Crash;

        /** Ends the process; a {@link #run} in another thread then fails. */
        @Override
        void close();
    }

    /** A program has ended its process. The message says how: "signal 11". */
    @SuppressWarnings("serial")
    final class Crash extends Exception {
        /** Whether another trial would end the same way; false for lack of memory or an unknown reason. */
        public final boolean lasting;

        public Crash(String how, boolean lasting) {
            super(how);
            this.lasting = lasting;
        }
    }
}
