package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.BodyError;
import org.sedge.edge.SedgeException.FrameError;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** A frame: a header of 64 bytes, which contains a MAC, and a body (WIRE.md, section 3). */
public final class Frame {
    public static final int HEADER_BYTES = 64;
    public static final int MAX_BODY_BYTES = 1 << 18;
    /** The size of the largest packet in this protocol (WIRE.md, 1.8). */
    public static final int MAX_PACKET = 266304;
    private static final byte[] NO_TRANSFER = new byte[16];
    private static final int MAC_OFFSET = 48;
    private static final int UNKEYED = 1;
    private static final long MAX_INCARNATION = 0xffffffffL;
    /** A clock that shows a later time than this must be wrong, and using it would leave too few start counts. */
    private static final long LATEST_CLOCK_S = MAX_INCARNATION - (1 << 24);

    public final Kind kind;
    public final byte[] body;
    public final long incarnation;
    public final long seq;
    /** The protocol versions that this code supports. */
    public static final List<Long> VERSIONS = Collections.singletonList(2L);
    public final byte[] transfer;
    public final long index;

    public Frame(Kind kind, byte[] body, long incarnation, long seq, byte[] transfer, long index) {
        this.kind = kind;
        this.body = body;
        this.incarnation = incarnation;
        this.seq = seq;
        this.transfer = transfer == null ? NO_TRANSFER : transfer;
        this.index = index;
    }

    /** Returns an upper bound on the size of a message as an MQTT packet. */
    public static int packetBytes(String topic, byte[] payload) {
        return payload.length + topic.length() + 64;
    }

    /**
     * Encodes the frame for one topic.
     *
     * @param key null for an UNKEYED chunk
     * @param version the protocol version, which frozen kinds ignore
     */
    public byte[] seal(String topic, byte[] key, int version) {
        ByteBuffer out = ByteBuffer.allocate(HEADER_BYTES + body.length).order(ByteOrder.LITTLE_ENDIAN);
        out.put((byte) 'S').put((byte) 'G').put((byte) (kind.frozen ? 1 : version)).put((byte) kind.number());
        out.putShort((short) (key == null ? UNKEYED : 0)).putShort((short) HEADER_BYTES);
        out.putInt((int) incarnation).putInt((int) seq).put(transfer).putInt((int) index).putInt(body.length);
        out.position(HEADER_BYTES);
        out.put(body);
        byte[] sealed = out.array();
        if (key != null) {
            System.arraycopy(mac(key, topic, sealed), 0, sealed, MAC_OFFSET, 16);
        }
        return sealed;
    }

    /**
     * Decodes a frame.
     *
     * <p>Lengths and limits are checked before the MAC, and the MAC before anything else is used.
     *
     * @param key null to accept only UNKEYED chunks
     */
    public static Frame open(byte[] data, String topic, byte[] key, List<Long> versions) throws FrameError {
        if (data.length < HEADER_BYTES) {
            throw new FrameError("frame of " + data.length + " bytes, the header alone has " + HEADER_BYTES);
        }
        ByteBuffer in = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        if (in.get(0) != 'S' || in.get(1) != 'G') {
            throw new FrameError("frame that does not begin with SG");
        }
        Kind kind = Kind.of(in.get(3) & 0xff);
        long version = in.get(2) & 0xff;
        if (kind != null && kind.frozen ? version != 1 : !versions.contains(version)) {
            throw new FrameError("frame of protocol version " + version + ", this side speaks " + versions);
        }
        long bodyBytes = in.getInt(36) & 0xffffffffL;
        int headBytes = in.getShort(6) & 0xffff;
        if (bodyBytes > MAX_BODY_BYTES) {
            throw new FrameError("frame.body_len: " + bodyBytes + ", limit " + MAX_BODY_BYTES);
        }
        if (headBytes < HEADER_BYTES || headBytes + bodyBytes != data.length) {
            throw new FrameError(
                    "frame of " + data.length + " bytes, its header says " + headBytes + " + " + bodyBytes);
        }
        if (key == null ? (in.getShort(4) & UNKEYED) == 0 || kind != Kind.CHUNK
                : !MessageDigest.isEqual(mac(key, topic, data), Arrays.copyOfRange(data, MAC_OFFSET, HEADER_BYTES))) {
            throw new FrameError("frame on " + topic + (key == null ? ": expected an unkeyed chunk" : ": wrong MAC"));
        }
        if (kind == null) {
            throw new FrameError("frame.kind: " + (in.get(3) & 0xff) + " is unknown");
        }
        byte[] transfer = Arrays.copyOfRange(data, 16, 32);
        byte[] body = Arrays.copyOfRange(data, headBytes, data.length);
        return new Frame(kind, body, incarnationOf(data), in.getInt(12) & 0xffffffffL, transfer,
                in.getInt(32) & 0xffffffffL);
    }

    /**
     * Decodes the message in the body.
     *
     * @throws BodyError if the message does not match its schema
     */
    public Struct<?> message() throws BodyError {
        try {
            return kind.schema.decode(body);
        } catch (IllegalArgumentException error) {
            throw new BodyError(kind + ": " + error.getMessage(), kind == Kind.ORDER ? body : new byte[0]);
        }
    }

    /** Returns the start count from the header of a frame whose length and MAC have been checked. */
    static long incarnationOf(byte[] data) {
        return ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN).getInt(8) & 0xffffffffL;
    }

    /** Returns a new start count. It is above the last one, and at least the clock's Unix time if that is plausible. */
    public static long nextIncarnation(long last, long clockS) {
        return Math.min(Math.max(last + 1, clockS <= LATEST_CLOCK_S ? clockS : 0), MAX_INCARNATION);
    }

    private static byte[] mac(byte[] key, String topic, byte[] sealed) {
        byte[] head = Arrays.copyOf(sealed, MAC_OFFSET);
        byte[] rest = Arrays.copyOfRange(sealed, HEADER_BYTES, sealed.length);
        return Arrays.copyOf(Digests.hmac(key, topic.getBytes(StandardCharsets.UTF_8), head, rest), 16);
    }
}
