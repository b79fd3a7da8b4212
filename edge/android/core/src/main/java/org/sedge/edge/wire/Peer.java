package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.wire.Messages.Welcome;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** The device's end of its control channel: seals outgoing frames, opens and checks incoming ones. */
public final class Peer {
    /** A frame with its message; a chunk has none. */
    public static final class Opened {
        public final Frame frame;
        public final Struct<?> message;
        /** Whether the replay window has refused it; then there is no message. */
        public final boolean replayed;

        Opened(Frame frame, Struct<?> message, boolean replayed) {
            this.frame = frame;
            this.message = message;
            this.replayed = replayed;
        }
    }

    public final String topic;
    public final ReplayWindow window;
    /** The connection's nonce until a welcome has answered it, then null. */
    public byte[] awaited;
    private DeviceKeys keys;
    private final long incarnation;
    /** The protocol versions that this side supports. */
    public final List<Long> versions;
    private long seq;
    private long version;

    /** Takes this side's start count, and the newest start count received from the coordinator. */
    public Peer(String topic, DeviceKeys keys, long incarnation, long heard) {
        this(topic, keys, incarnation, heard, Frame.VERSIONS);
    }

    /** The same, with other protocol versions. */
    public Peer(String topic, DeviceKeys keys, long incarnation, long heard, List<Long> versions) {
        this.versions = versions;
        this.topic = topic;
        this.keys = keys;
        this.incarnation = incarnation;
        window = new ReplayWindow(heard);
        version = Collections.min(versions);
    }

    /** Seals and opens with other keys from now on; counts and window stay. */
    public void change(DeviceKeys others) {
        keys = others;
    }

    /** A control frame's bytes. */
    public byte[] seal(Kind kind, Struct<?> message, byte[] transfer) {
        seq++;
        return new Frame(kind, message.encode(), incarnation, seq, transfer, 0).seal(topic, keys.up, (int) version);
    }

    /** A chunk's frame: idempotent, and therefore without a number. */
    public byte[] chunk(byte[] transfer, int index, byte[] data) {
        return new Frame(Kind.CHUNK, data, incarnation, 0, transfer, index).seal(topic, keys.up, 1);
    }

    /** Switches to the highest version that the coordinator also supports. */
    public void agree(List<Long> theirs) throws FrameError {
        List<Long> common = new ArrayList<>(versions);
        common.retainAll(theirs);
        if (common.isEmpty()) {
            throw new FrameError("protocol versions " + theirs + ", this side speaks " + versions);
        }
        version = Collections.max(common);
    }

    /** Opens a frame and decodes its message. Throws {@code FrameError} for a frame that is not from our peer. */
    public Opened open(byte[] payload, String from) throws FrameError {
        Frame frame = Frame.open(payload, from, keys.down, versions);
        if (frame.kind == Kind.CHUNK) {
            return new Opened(frame, null, false);
        }
        if (frame.kind != Kind.GOODBYE && !window.accept(frame.incarnation, frame.seq)) {
            if (!answers(frame)) {
                return new Opened(frame, null, true);
            }
            window.restart(frame.incarnation, frame.seq);
        }
        return new Opened(frame, frame.message(), false);
    }

    /**
     * Whether a frame of an older start is the awaited welcome. Its nonce is random and new, so it is not a replay: the
     * newer count was forged, or the coordinator has lost its count.
     */
    private boolean answers(Frame frame) throws FrameError {
        return frame.kind == Kind.WELCOME && awaited != null && frame.incarnation < window.incarnation()
                && Arrays.equals(((Welcome) frame.message()).nonce, awaited);
    }
}
