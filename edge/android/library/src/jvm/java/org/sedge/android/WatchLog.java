package org.sedge.android;

import java.io.File;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Observes a log that another process writes: {@code FILE}. Prints what the listener sees. */
public final class WatchLog {
    private WatchLog() {}

    public static void main(String[] words) throws InterruptedException {
        final BlockingQueue<String> seen = new LinkedBlockingQueue<String>();
        final RoundLog log = new RoundLog(new File(words[0]));
        RoundLog writer = new RoundLog(new File(words[0]));
        RoundLog.Subscription listening = log.listen(new RoundLog.Listener() {
            @Override
            public void changed() {
                seen.add(log.now());
            }
        });
        for (String sentence : new String[] {"Training.", "Done."}) {
            writer.say(sentence);
            System.out.println(seen.poll(20, TimeUnit.SECONDS));
        }
        listening.close();
        writer.say("Nobody listens.");
        System.out.println(seen.poll(100, TimeUnit.MILLISECONDS));
    }
}
