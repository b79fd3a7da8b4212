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
 * The secret of a device, and its successor (protocol/spec/enrolment.md, E14 to E17).
 *
 * <p>The stored state belongs to the secret that the device was enrolled with: another secret invalidates it. It is five
 * lines of hex digits: that secret's fingerprint, the current secret, the coordinator's key, and the two halves of the
 * device's own key pair, from which the next secret is derived; a line is empty if there is no such value.
 */
public final class Keyring {
    private static final int LINES = 5;

    /** The keys of the device's enrolment. */
    public final DeviceKeys base;
    private final String fleet;
    private final String device;
    private final DurableBytes durable;
    private byte[] secret;
    private byte[] point = new byte[0];
    private Agreement.Pair pair;
    private boolean usesNext;

    /** The keys of a device that was enrolled with this secret of 32 bytes. */
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

    /** The keys in use. */
    public DeviceKeys keys() {
        return new DeviceKeys(usesNext ? next().secret : secret);
    }

    /** The JOIN that answers RENEW with this key of the coordinator; the key pair is already on disk. */
    Join answer(byte[] asked, String version) throws FrameError, StorageError {
        if (pair == null || !Arrays.equals(point, asked)) {
            Agreement.Pair made = Agreement.Pair.make();
            new Agreement(made, asked, fleet, device); // throws for anything but a point on the curve
            save(secret, asked, made);
        }
        return Join.SCHEMA.empty().with(Join.POINT, pair.point).with(Join.DEVICE, device)
                .with(Join.PROOF, next().asks(device)).with(Join.VERSION, version);
    }

    /** Switches to the other keys, because the broker refuses these; false if there are none. */
    boolean turn() {
        usesNext = pair != null && !usesNext;
        return pair != null;
    }

    /** The coordinator accepts the keys in use: keeps only those. */
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
            throw new IllegalStateException(error); // it was checked before it was stored
        }
    }
}
