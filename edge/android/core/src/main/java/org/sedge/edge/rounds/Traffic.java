package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Job;

import java.util.HashMap;
import java.util.Map;
import java.util.logging.Level;

/**
 * Passes effects on to the shell. Also counts the bytes sent and received for each run since its order arrived, to show
 * them to people.
 */
final class Traffic implements Effects {
    private final Effects shell;
    private final Map<String, long[]> began = new HashMap<>();
    private long up;
    private long down;

    Traffic(Effects shell) {
        this.shell = shell;
    }

    void received(byte[] payload) {
        down += payload.length;
    }

    void began(String run) {
        began.put(run, new long[] {up, down});
    }

    /**
     * Returns the number of bytes sent and received since the run's order arrived, or since the process started if that
     * was later.
     */
    long[] since(String run) {
        long[] then = began.containsKey(run) ? began.get(run) : new long[2];
        return new long[] {up - then[0], down - then[1]};
    }

    @Override
    public void send(String topic, byte[] payload) {
        up += payload.length;
        shell.send(topic, payload);
    }

    @Override
    public void subscribe(String topic) {
        shell.subscribe(topic);
    }

    @Override
    public void unsubscribe(String topic) {
        shell.unsubscribe(topic);
    }

    @Override
    public void start(Job job) {
        shell.start(job);
    }

    @Override
    public void keepCertificate(byte[] der) {
        shell.keepCertificate(der);
    }

    @Override
    public void note(Level level, String text) {
        shell.note(level, text);
    }
}
