package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.wire.Messages.Report;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * The blob that a device sends at the end of a round. It consists of a report and an encoded delta (WIRE.md, section
 * 9).
 */
public final class Update {
    private static final int MAX_REPORT_BYTES = 4096;

    public final Report report;
    public final byte[] payload;

    public Update(Report report, byte[] payload) {
        this.report = report;
        this.payload = payload;
    }

    /** Returns the update as a blob. */
    public byte[] encode() {
        byte[] head = report.encode();
        return ByteBuffer.allocate(4 + head.length + payload.length).order(ByteOrder.LITTLE_ENDIAN)
                .putInt(head.length).put(head).put(payload).array();
    }

    /** Splits a blob into its report and its payload, without decoding the payload. */
    public static Update decode(byte[] blob) throws CodecError {
        long length = blob.length < 4 ? -1
                : ByteBuffer.wrap(blob).order(ByteOrder.LITTLE_ENDIAN).getInt() & 0xffffffffL;
        if (length < 0 || length > MAX_REPORT_BYTES || 4 + length > blob.length) {
            throw new CodecError("update of " + blob.length + " bytes with a head of " + length);
        }
        int end = 4 + (int) length;
        try {
            Report report = Messages.Report.SCHEMA.decode(Arrays.copyOfRange(blob, 4, end));
            return new Update(report, Arrays.copyOfRange(blob, end, blob.length));
        } catch (IllegalArgumentException error) {
            throw new CodecError("update: " + error.getMessage(), error);
        }
    }
}
