package org.sedge.edge;

import org.sedge.edge.wire.Metric;

/** An agent's events for people. Called on the agent's thread; must return quickly. */
public interface AgentListener {
    /** The coordinator has answered; the device is a member of the fleet. */
    void joined(String fleet, String device);

    /** The link is down; the agent reconnects automatically. */
    void disconnected(String reason);

    /** Another problem that a person should know about: the coordinator refuses this device, the disk is full, an update is lost. */
    void trouble(String text);

    /** A round's training begins. */
    void training(String run, int round);

    /**
     * A round's update has its receipt.
     *
     * @param metric the model's metric: its accuracy, or another one that the model's makers have chosen
     * @param before the metric on this device's own examples, with the received model
     * @param after the same after training
     * @param bytesUp bytes sent in the round; {@code bytesDown}: bytes received
     */
    void finished(String run, int round, Metric metric, double before, double after, long bytesUp, long bytesDown);

    /** An order was declined or an update rejected, for a reason that the coordinator's operator also sees. */
    void declined(String run, int round, String reason);
}
