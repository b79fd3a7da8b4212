package org.sedge.edge;

/** A token by which devices join a fleet (protocol/spec/enrolment.md, E8). */
public final class JoinToken {
    /** The token's account at the broker: its id in the place of a device's, its key in that of a secret. */
    public final AgentConfig account;
    /** The id of the one device that it is for; empty: of any. */
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
