package org.sedge.android;

import android.app.Service;

import org.sedge.edge.wire.Metric;

import java.io.File;

/**
 * Reports the progress of two runs at once, and a problem: {@code FILE}, where the file is the log. Prints when the
 * notification is closed.
 */
public final class TellProgress extends Service {
    private TellProgress() {}

    @Override
    public void stopForeground(boolean remove) {
        System.out.println("closed");
    }

    public static void main(String[] words) {
        RoundLog log = new RoundLog(new File(words[0]));
        Progress progress = new Progress(log, new TrainingNotice(new TellProgress()));
        progress.joined("fleet", "phone");
        progress.training("first", 1);
        progress.training("second", 1);
        progress.finished("first", 1, Metric.ACCURACY, 0, 1, 2, 3);
        System.out.println(log.now());
        progress.finished("second", 1, Metric.ACCURACY, 0, 1, 2, 3);
        System.out.println(progress.ended(true));
        progress.trouble("the coordinator refuses: revoked");
        System.out.println(log.now());
        System.out.println(progress.ended(true));
    }
}
