package org.sedge.edge.wire;

/** The topics that a device uses (WIRE.md, section 1). */
public final class Topics {
    private Topics() {}

    /** Where a device sends. */
    public static String up(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + device + "/up";
    }

    /** Where a device listens. */
    public static String down(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + device + "/down";
    }

    /** Where the chunks of a shared blob are published. */
    public static String blob(String fleet, byte[] transfer) {
        return "sedge/1/" + fleet + "/blob/" + Hex.encode(transfer);
    }
}
