package org.sedge.edge;

/** A token with which devices join a fleet (protocol/spec/enrolment.md, E8). */
public final class JoinToken {
    /** The token's account at the broker: its id in place of a device's, its key in place of a secret. */
    public final AgentConfig account;
    /** The id of the only device that may use it; empty: any device. */
    public final String device;
    final byte[] point;

    JoinToken(AgentConfig account, byte[] point, String device) throws SedgeException {
        if (point.length != 65) {
            throw new SedgeException.ConfigError("point", "'" + point.length + " bytes'", "130 hex digits");
        }
        this.account = account;
        this.point = point;
        this.device = device;
    }
}
