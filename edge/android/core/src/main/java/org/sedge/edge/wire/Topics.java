package org.sedge.edge.wire;

import java.nio.charset.StandardCharsets;

/** The topics that a device uses (WIRE.md, section 1). */
public final class Topics {
    private Topics() {}

    /** Where a device sends. */
    public static String up(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + shard(device) + "/" + device + "/up";
    }

    /** Where a device listens. */
    public static String down(String fleet, String device) {
        return "sedge/1/" + fleet + "/device/" + shard(device) + "/" + device + "/down";
    }

    /** Where the coordinator asks a device, with all others of its shard, for a hello. */
    public static String hint(String fleet, String device) {
        return "sedge/1/" + fleet + "/shard/" + shard(device);
    }

    private static String shard(String device) {
        int first = Digests.sha256(device.getBytes(StandardCharsets.US_ASCII))[0] & 0x3f;
        return Hex.encode(new byte[] {(byte) first});
    }

    /** Where the chunks of a shared blob are published. */
    public static String blob(String fleet, byte[] transfer) {
        return "sedge/1/" + fleet + "/blob/" + Hex.encode(transfer);
    }
}
