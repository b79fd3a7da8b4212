package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Job;

import java.util.logging.Level;

/**
 * Carries out the core's requests, in order. The core calls these methods only after the corresponding state is on
 * disk.
 */
public interface Effects {
    /** Publishes one frame at QoS 0. The core repeats important frames until they are answered. */
    void send(String topic, byte[] payload);

    void subscribe(String topic);

    void unsubscribe(String topic);

    /**
     * Runs this job on another thread, then calls the core's {@code finished}, {@code failed} or {@code interrupted}.
     */
    void start(Job job);

    /**
     * Stores this certificate (DER), presents it to the broker from the next connection on, then calls
     * {@code certified}.
     */
    void keepCertificate(byte[] der);

    /** Logs one line. */
    void note(Level level, String text);
}
