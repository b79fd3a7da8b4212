package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.FrameError;
import org.sedge.edge.wire.Messages.Welcome;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** The device's end of its channel to the coordinator. It seals outgoing frames, and opens and checks incoming ones. */
public final class Peer {
    /** An opened frame and its message. A chunk has no message. */
    public static final class Opened {
        public final Frame frame;
        public final Struct<?> message;
        /** Whether the replay window has refused the frame. In that case its message is not decoded. */
        public final boolean replayed;

        Opened(Frame frame, Struct<?> message, boolean replayed) {
            this.frame = frame;
            this.message = message;
            this.replayed = replayed;
        }
    }

    public final String topic;
    public final ReplayWindow window;
    /** The nonce of this connection; null once a welcome has answered it. */
    public byte[] awaited;
    private DeviceKeys keys;
    private final long incarnation;
    /** The protocol versions that this side supports. */
    public final List<Long> versions;
    private long seq;
    private long version;

    /**
     * @param incarnation this side's start count
     * @param heard the newest start count received from the coordinator
     */
    public Peer(String topic, DeviceKeys keys, long incarnation, long heard) {
        this(topic, keys, incarnation, heard, Frame.VERSIONS);
    }

    /** @param versions the protocol versions to support instead of {@link Frame#VERSIONS} */
    public Peer(String topic, DeviceKeys keys, long incarnation, long heard, List<Long> versions) {
        this.versions = versions;
        this.topic = topic;
        this.keys = keys;
        this.incarnation = incarnation;
        window = new ReplayWindow(heard);
        version = Collections.min(versions);
    }

    /** Switches to other keys. The frame counter and the replay window stay as they are. */
    public void change(DeviceKeys others) {
        keys = others;
    }

    /** Returns the bytes of a control frame. */
    public byte[] seal(Kind kind, Struct<?> message, byte[] transfer) {
        seq++;
        return new Frame(kind, message.encode(), incarnation, seq, transfer, 0).seal(topic, keys.up, (int) version);
    }

    /** Returns the bytes of a chunk's frame. It has no number, because receiving a chunk twice does no harm. */
    public byte[] chunk(byte[] transfer, int index, byte[] data) {
        return new Frame(Kind.CHUNK, data, incarnation, 0, transfer, index).seal(topic, keys.up, 1);
    }

    /** Switches to the highest protocol version that both sides support. */
    public void agree(List<Long> theirs) throws FrameError {
        List<Long> common = new ArrayList<>(versions);
        common.retainAll(theirs);
        if (common.isEmpty()) {
            throw new FrameError("protocol versions " + theirs + ", this side speaks " + versions);
        }
        version = Collections.max(common);
    }

    /**
     * Opens a frame and decodes its message.
     *
     * @throws FrameError if the frame does not come from the coordinator, or is malformed
     */
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
     * Returns true if a frame with an older start count is the welcome that we are waiting for. Its nonce is random and
     * new, so it cannot be a replay. Either the newer count was forged, or the coordinator has lost its count.
     */
    private boolean answers(Frame frame) throws FrameError {
        return frame.kind == Kind.WELCOME && awaited != null && frame.incarnation < window.incarnation()
                && Arrays.equals(((Welcome) frame.message()).nonce, awaited);
    }
}
