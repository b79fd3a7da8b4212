package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.SedgeException.StorageError;
import org.sedge.edge.jobs.DurableBytes;
import org.sedge.edge.wire.Agreement;
import org.sedge.edge.wire.DeviceKeys;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Messages.Join;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * A device's secret, and the secret that will replace it (protocol/spec/enrolment.md, E14 to E17).
 *
 * <p>The stored state becomes invalid if the device is enrolled again with a different secret. The state consists of
 * five lines of hex digits: the fingerprint of the secret from the enrolment, the current secret, the coordinator's
 * public key, and the public and private halves of the device's key pair. The next secret is derived from the keys. A
 * line is empty if there is no such value.
 */
public final class Keyring {
    private static final int LINES = 5;

    /** The keys derived from the secret with which the device was enrolled. */
    public final DeviceKeys base;
    private final String fleet;
    private final String device;
    private final DurableBytes durable;
    private byte[] secret;
    private byte[] point = new byte[0];
    private Agreement.Pair pair;
    private boolean usesNext;

    /** Loads the keys of a device that was enrolled with this 32-byte secret. */
    public Keyring(byte[] enrolled, String fleet, String device, DurableBytes durable) throws StorageError {
        base = new DeviceKeys(enrolled);
        this.fleet = fleet;
        this.device = device;
        this.durable = durable;
        secret = enrolled;
        byte[] kept = durable.load();
        String[] lines = kept == null ? new String[0] : new String(kept, StandardCharsets.US_ASCII).split("\n", -1);
        if (lines.length == LINES && lines[0].equals(Hex.encode(base.fingerprint()))) {
            secret = lines[1].isEmpty() ? enrolled : Hex.decode(lines[1]);
            point = Hex.decode(lines[2]);
            pair = lines[3].isEmpty() ? null : new Agreement.Pair(Hex.decode(lines[3]), Hex.decode(lines[4]));
        }
    }

    /** Returns the keys in use. */
    public DeviceKeys keys() {
        return new DeviceKeys(usesNext ? next().secret : secret);
    }

    /**
     * Returns the JOIN that answers a RENEW containing this public key of the coordinator. By the time this returns,
     * the device's new key pair is on disk.
     */
    Join answer(byte[] asked, String version) throws FrameError, StorageError {
        if (pair == null || !Arrays.equals(point, asked)) {
            Agreement.Pair made = Agreement.Pair.make();
            new Agreement(made, asked, fleet, device); // throws if the key is not a point on the curve
            save(secret, asked, made);
        }
        return Join.SCHEMA.empty().with(Join.POINT, pair.point).with(Join.DEVICE, device)
                .with(Join.PROOF, next().asks(device)).with(Join.VERSION, version);
    }

    /**
     * Switches to the device's other set of keys after the broker has refused the current set. Returns false if there
     * is no other set.
     */
    boolean turn() {
        usesNext = pair != null && !usesNext;
        return pair != null;
    }

    /**
     * Call this when the coordinator has accepted the keys in use. If those are the next keys, they replace the current
     * ones.
     */
    void welcomed() throws StorageError {
        if (usesNext) {
            save(next().secret, new byte[0], null);
            usesNext = false;
        }
    }

    private void save(byte[] present, byte[] asked, Agreement.Pair made) throws StorageError {
        String text = String.join("\n", Hex.encode(base.fingerprint()), Hex.encode(present), Hex.encode(asked),
                made == null ? "" : Hex.encode(made.point), made == null ? "" : Hex.encode(made.coded));
        durable.commit(text.getBytes(StandardCharsets.US_ASCII));
        secret = present;
        point = asked;
        pair = made;
    }

    private Agreement next() {
        try {
            return new Agreement(pair, point, fleet, device);
        } catch (FrameError error) {
            throw new IllegalStateException(error); // the key was checked before it was stored
        }
    }
}
