package org.sedge.android;

import org.sedge.edge.wire.Metric;

import java.io.File;

/**
 * Adds a number of rounds and a sentence to a log: {@code FILE ROUNDS}. Then opens the file again and prints its
 * contents.
 */
public final class KeepLog {
    private KeepLog() {}

    public static void main(String[] words) {
        File file = new File(words[0]);
        RoundLog log = new RoundLog(file);
        for (int round = 1; round <= Integer.parseInt(words[1]); round++) {
            Metric metric = round % 3 == 0 ? Metric.ACCURACY : new Metric("mean_absolute_error", false);
            double after = round % 2 == 0 ? Double.NaN : 0.5;
            log.add(new RoundLog.Round(1000L * round, "first", round, metric, 0.25, after, 2000, 3000, "one\nline\ttab"));
        }
        log.say("All is\nwell.");
        RoundLog again = new RoundLog(file);
        System.out.println(again.now());
        for (RoundLog.Round round : again.rounds()) {
            System.out.println(round.time + " " + round.run + " " + round.round + " " + round.metric.said(round.before)
                    + " " + round.after + " " + round.bytesUp + " " + round.bytesDown + " " + round.reason);
        }
    }
}
