package org.sedge.android;

import org.sedge.edge.AgentListener;
import org.sedge.edge.wire.Metric;

/** Logs an agent's activity, and shows a notification while it trains. */
final class Progress implements AgentListener {
    private final RoundLog log;
    private final TrainingNotice notice;
    private String trouble = "";
    private boolean joined;
    private String inTraining = "";

    Progress(RoundLog log, TrainingNotice notice) {
        this.log = log;
        this.notice = notice;
    }

    @Override
    public void joined(String fleet, String device) {
        joined = true;
        trouble = "";
        log.say("Connected to the fleet " + fleet + " as " + device + ".");
    }

    @Override
    public void disconnected(String reason) {
        trouble = "Not connected: " + reason;
        log.say(trouble);
    }

    @Override
    public void trouble(String text) {
        trouble = text;
        log.say(text);
    }

    @Override
    public void training(String run, int round) {
        inTraining = round + " " + run;
        notice.show("Round " + round + " of " + run);
        log.say("Training: round " + round + " of " + run + " …");
    }

    @Override
    public void finished(String run, int round, Metric metric, double before, double after, long bytesUp,
            long bytesDown) {
        trouble = "";
        close(run, round);
        log.add(new RoundLog.Round(
                System.currentTimeMillis(), run, round, metric, before, after, bytesUp, bytesDown, ""));
        log.say("Round " + round + " of " + run + " is done.");
    }

    @Override
    public void declined(String run, int round, String reason) {
        close(run, round);
        log.add(new RoundLog.Round(
                System.currentTimeMillis(), run, round, Metric.ACCURACY, Double.NaN, Double.NaN, 0, 0, reason));
        log.say("Round " + round + " of " + run + " was declined: " + reason);
    }

    /**
     * Closes the notification, unless it belongs to another round, which may be training while this round's update is
     * being sent.
     */
    private void close(String run, int round) {
        if (inTraining.equals(round + " " + run)) {
            notice.close();
        }
    }

    /**
     * Returns a sentence about a job that has ended.
     *
     * @param done whether the job has finished all its work
     */
    String ended(boolean done) {
        if (!trouble.isEmpty()) {
            return trouble;
        }
        if (!joined) {
            return "The coordinator did not answer; this phone tries again in its next job.";
        }
        return done ? "Nothing to do; waiting for the next round." : "Interrupted; the next job continues from here.";
    }
}
