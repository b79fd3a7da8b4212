package org.sedge.edge.wire;

import java.nio.charset.StandardCharsets;

/** The topics that a device uses (WIRE.md, section 1). */
public final class Topics {
    private Topics() {}

    /** The topic on which a device sends. */
    public static String up(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + shard(device) + "/" + device + "/up";
    }

    /** The topic on which a device receives. */
    public static String down(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + shard(device) + "/" + device + "/down";
    }

    /** The topic on which the coordinator asks all devices of a device's shard for a hello. */
    public static String hint(String fleet, String device) {
        return "sedge/1/" + fleet + "/shard/" + shard(device);
    }

    private static String shard(String device) {
        int first = Digests.sha256(device.getBytes(StandardCharsets.US_ASCII))[0] & 0x3f;
        return Hex.encode(new byte[] {(byte) first});
    }

    /** The topic of the chunks of a shared blob. */
    public static String blob(String fleet, byte[] transfer) {
        return "sedge/1/" + fleet + "/blob/" + Hex.encode(transfer);
    }
}
