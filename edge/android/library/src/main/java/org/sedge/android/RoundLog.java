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
 * Records a device's activity on disk: one sentence about its current state, and its last {@value #KEPT} rounds.
 *
 * <p>The file is plain text. The first line has a time and the sentence. Each line after it is a round, with fields
 * separated by tabs.
 */
public final class RoundLog {
    static final int KEPT = 100;

    /** A round that this device has trained in or declined. */
    public static final class Round {
        /** When the round ended on this device, in milliseconds since 1970. */
        public final long time;
        public final String run;
        public final int round;
        /** The model's metric. */
        public final Metric metric;
        /**
         * The metric's value before training; the next field is the value after training. Both are NaN if the round was
         * declined.
         */
        public final double before;
        public final double after;
        public final long bytesUp;
        public final long bytesDown;
        /** Why the order was declined or the update rejected; otherwise empty. */
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

    /** Is notified when the log changes. */
    public interface Listener {
        /** Called after each change to the log, on one of Android's threads, which must not be blocked. */
        void changed();
    }

    /** A listener's subscription, which lasts until it is closed. */
    public interface Subscription extends AutoCloseable {
        @Override
        void close();
    }

    /** Calls the listener whenever any process replaces the file. */
    private static final class Watch extends FileObserver implements Subscription {
        private final String name;
        private final Listener listener;

        @SuppressWarnings("deprecation") // the constructor that takes a File needs API 29
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

    /** Opens the log in a file, which need not exist. */
    public RoundLog(File file) {
        this.file = file;
    }

    /** Calls the listener after each change, until the returned subscription is closed. */
    public Subscription listen(Listener listener) {
        return new Watch(file, listener);
    }

    /** Returns one sentence about what the device is doing, or about its problem. It is empty at first. */
    public synchronized String now() {
        return lines().get(0);
    }

    /** Returns the last rounds, newest first. */
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
            // The log is only shown to people, so a damaged log is simply replaced by an empty one.
        }
        return new ArrayList<String>(Collections.singletonList(""));
    }

    private void write(List<String> lines) {
        File fresh = new File(file.getPath() + ".new");
        try {
            Files.write(fresh.toPath(), lines, StandardCharsets.UTF_8);
            Files.move(fresh.toPath(), file.toPath(), StandardCopyOption.ATOMIC_MOVE);
        } catch (IOException error) {
            // The disk may be full; training continues without the log.
        }
    }
}
