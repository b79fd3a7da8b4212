package org.sedge.android;

import android.os.FileObserver;

import org.jspecify.annotations.Nullable;

import org.sedge.edge.wire.Metric;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * A device's activity, on disk: one sentence about its current state, and its last {@value #KEPT} rounds.
 *
 * <p>Plain text: a first line with time and sentence, then a line for each round, with fields separated by tabs.
 */
public final class RoundLog {
    static final int KEPT = 100;

    /** A round that this device trained in, or declined. */
    public static final class Round {
        /** When it ended, in milliseconds since 1970. */
        public final long time;
        public final String run;
        public final int round;
        /** The model's metric. */
        public final Metric metric;
        /** The metric before and after training; NaN if the round was declined. */
        public final double before;
        public final double after;
        public final long bytesUp;
        public final long bytesDown;
        /** Why it was declined or rejected; otherwise empty. */
        public final String reason;

        Round(long time, String run, int round, Metric metric, double before, double after, long bytesUp,
                long bytesDown, String reason) {
            this.time = time;
            this.run = run;
            this.round = round;
            this.metric = metric;
            this.before = before;
            this.after = after;
            this.bytesUp = bytesUp;
            this.bytesDown = bytesDown;
            this.reason = reason;
        }

        private String line() {
            return time + "\t" + run + "\t" + round + "\t" + metric.name + "\t" + metric.share + "\t" + before + "\t"
                    + after + "\t" + bytesUp + "\t" + bytesDown + "\t" + reason;
        }

        private static Round of(String line) {
            String[] part = line.split("\t", 10);
            Metric metric = new Metric(part[3], Boolean.parseBoolean(part[4]));
            return new Round(Long.parseLong(part[0]), part[1], Integer.parseInt(part[2]), metric,
                    Double.parseDouble(part[5]), Double.parseDouble(part[6]), Long.parseLong(part[7]),
                    Long.parseLong(part[8]), part[9]);
        }
    }

    /** Receives changes. */
    public interface Listener {
        /** Called after a change of the log, on a thread of Android's that must not be blocked. */
        void changed();
    }

    /** A listener's subscription, until it is closed. */
    public interface Subscription extends AutoCloseable {
        @Override
        void close();
    }

    /** Observes each replacement of the file, by any process. */
    private static final class Watch extends FileObserver implements Subscription {
        private final String name;
        private final Listener listener;

        @SuppressWarnings("deprecation") // the constructor with a File came with API 29
        Watch(File file, Listener listener) {
            super(file.getParent(), FileObserver.MOVED_TO);
            name = file.getName();
            this.listener = listener;
            startWatching();
        }

        @Override
        public void onEvent(int event, @Nullable String path) {
            if (name.equals(path)) {
                listener.changed();
            }
        }

        @Override
        public void close() {
            stopWatching();
        }
    }

    private final File file;

    /** The log in a file, which need not exist. */
    public RoundLog(File file) {
        this.file = file;
    }

    /** Calls the listener after each change from now on; keep the result and close it. */
    public Subscription listen(Listener listener) {
        return new Watch(file, listener);
    }

    /** The device's current activity or problem in one sentence; empty before the first one. */
    public synchronized String now() {
        return lines().get(0);
    }

    /** The last rounds, the newest first. */
    public synchronized List<Round> rounds() {
        List<Round> rounds = parsed(lines());
        Collections.reverse(rounds);
        return rounds;
    }

    private static List<Round> parsed(List<String> lines) {
        List<Round> rounds = new ArrayList<Round>();
        for (String line : lines.subList(1, lines.size())) {
            rounds.add(Round.of(line));
        }
        return rounds;
    }

    synchronized void say(String sentence) {
        List<String> lines = lines();
        lines.set(0, plain(sentence));
        write(lines);
    }

    synchronized void add(Round round) {
        List<String> lines = lines();
        lines.add(plain(round.line()));
        if (lines.size() > KEPT + 1) {
            lines.remove(1);
        }
        write(lines);
    }

    private static String plain(String text) {
        return text.replaceAll("[\\p{Cntrl}&&[^\t]]", " ");
    }

    private List<String> lines() {
        try {
            if (file.exists()) {
                List<String> lines = new ArrayList<String>(
                        Files.readAllLines(file.toPath(), StandardCharsets.UTF_8));
                parsed(lines);
                return lines;
            }
        } catch (IOException | IllegalArgumentException | IndexOutOfBoundsException error) {
            // Only shown to a person: a damaged log starts empty.
        }
        return new ArrayList<String>(Collections.singletonList(""));
    }

    private void write(List<String> lines) {
        File fresh = new File(file.getPath() + ".new");
        try {
            Files.write(fresh.toPath(), lines, StandardCharsets.UTF_8);
            Files.move(fresh.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException error) {
            // A full disk: training continues without the log.
        }
    }
}
