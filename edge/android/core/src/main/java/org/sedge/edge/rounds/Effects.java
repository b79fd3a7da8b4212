package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Job;

import java.util.logging.Level;

/** The core's requests to its shell, in order; the state that they announce is already on disk. */
public interface Effects {
    /** Publish one frame at QoS 0: important frames are repeated until they are answered. */
    void send(String topic, byte[] payload);

    void subscribe(String topic);

    void unsubscribe(String topic);

    /** Do this job in another thread, then call {@code finished}, {@code failed} or {@code interrupted}. */
    void start(Job job);

    /** One line for the log. */
    void note(Level level, String text);
}
