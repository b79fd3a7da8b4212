package org.sedge.edge;

import org.sedge.edge.wire.Metric;

/** What a person wants to see of an agent. Called on the agent's thread; must return soon. */
public interface AgentListener {
    /** The coordinator has answered; the device is a member of the fleet. */
    void joined(String fleet, String device);

    /** The link is gone; the agent tries again by itself. */
    void disconnected(String reason);

    /** What else a person should hear of: the coordinator refuses this device, the disk is full, an update is lost. */
    void trouble(String text);

    /** A round's training begins. */
    void training(String run, int round);

    /**
     * A round's update has its receipt.
     *
     * @param metric what the model is measured by: its accuracy, or what else the model's makers have named
     * @param before the metric on this device's own examples, with the model that was received
     * @param after the same after training
     * @param bytesUp bytes that the round sent; {@code bytesDown}: that it received
     */
    void finished(String run, int round, Metric metric, double before, double after, long bytesUp, long bytesDown);

    /** An order was declined, or an update rejected, with the reason that the coordinator's operator sees too. */
    void declined(String run, int round, String reason);
}
