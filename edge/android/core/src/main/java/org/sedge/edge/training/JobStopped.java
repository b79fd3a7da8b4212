package org.sedge.edge.training;

/** A job was stopped on purpose. It can continue from the blob {@link #checkpoint}, if there is one. */
@SuppressWarnings("serial")
public final class JobStopped extends Exception {
    public final transient byte[] checkpoint;

    public JobStopped(String text, byte[] checkpoint) {
        super(text, null, false, false);
        this.checkpoint = checkpoint;
    }
}
