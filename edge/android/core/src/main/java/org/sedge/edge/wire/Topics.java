package org.sedge.edge.wire;

import java.nio.charset.StandardCharsets;

/** The topics that a device uses (WIRE.md, section 1). */
public final class Topics {
    private Topics() {}

    /** Returns the topic to which a device publishes. */
    public static String up(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + shard(device) + "/" + device + "/up";
    }

    /** Returns the topic of the messages meant for one device only. */
    public static String down(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + shard(device) + "/" + device + "/down";
    }

    /** Returns the topic on which the coordinator asks a whole shard of devices, including this one, for a hello. */
    public static String hint(String fleet, String device) {
        return "sedge/1/" + fleet + "/shard/" + shard(device);
    }

    private static String shard(String device) {
        int first = Digests.sha256(device.getBytes(StandardCharsets.US_ASCII))[0] & 0x3f;
        return Hex.encode(new byte[] {(byte) first});
    }

    /** Returns the topic for the chunks of a blob that several devices receive. */
    public static String blob(String fleet, byte[] transfer) {
        return "sedge/1/" + fleet + "/blob/" + Hex.encode(transfer);
    }
}
