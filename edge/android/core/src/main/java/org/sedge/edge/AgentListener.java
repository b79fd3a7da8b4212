package org.sedge.edge;

import org.sedge.edge.wire.Metric;

/** Receives events to show to people. Methods are called on the agent's thread and must return quickly. */
public interface AgentListener {
    /** Called once the coordinator has welcomed the device as a member of the fleet. */
    void joined(String fleet, String device);

    /** Called when the link is lost; the agent reconnects automatically. */
    void disconnected(String reason);

    /**
     * Called for any other problem that the user should know about: the coordinator refuses this device, the disk is
     * full, or an update was lost.
     */
    void trouble(String text);

    /** Called when training for a round begins. */
    void training(String run, int round);

    /**
     * Called when the coordinator has confirmed that it received a round's update.
     *
     * @param metric the model's metric: accuracy, or another one that the model's authors have chosen
     * @param before the metric of the received model on this device's own examples
     * @param after the metric of the trained model on the same examples
     * @param bytesUp the bytes sent in the round
     * @param bytesDown the bytes received in the round
     */
    void finished(String run, int round, Metric metric, double before, double after, long bytesUp, long bytesDown);

    /**
     * Called when the device declines an order or the coordinator rejects an update. The fleet's operator sees the same
     * reason.
     */
    void declined(String run, int round, String reason);
}
