package org.sedge.edge;

/** A token that lets devices join a fleet (protocol/spec/enrolment.md, E8). */
public final class JoinToken {
    /** The token's own account at the broker: the token's id and key take the place of a device's id and secret. */
    public final AgentConfig account;
    /** The id of the only device that may use the token; empty if any device may. */
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
