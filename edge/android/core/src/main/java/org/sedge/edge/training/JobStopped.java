package org.sedge.edge.training;

/** A job was stopped on purpose. If there is a blob {@link #checkpoint}, the job can continue from it. */
@SuppressWarnings("serial")
public final class JobStopped extends Exception {
    public final transient byte[] checkpoint;

    public JobStopped(String text, byte[] checkpoint) {
        super(text, null, false, false);
        this.checkpoint = checkpoint;
    }
}
