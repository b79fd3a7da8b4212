package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Job;

import java.util.logging.Level;

/** What the core asks its shell to do, in this order; what is announced is on disk already. */
public interface Effects {
    /** Publish one frame at QoS 0: what matters is answered, and repeated until then. */
    void send(String topic, byte[] payload);

    void subscribe(String topic);

    void unsubscribe(String topic);

    /** Do this job beside the core, then call {@code finished}, {@code failed} or {@code interrupted}. */
    void start(Job job);

    /** One line for the log. */
    void note(Level level, String text);
}
