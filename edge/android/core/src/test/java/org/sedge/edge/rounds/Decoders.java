package org.sedge.edge.rounds;

import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.RemoteError;
import org.sedge.edge.codec.SparseVector;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Frame;
import org.sedge.edge.wire.Hex;
import org.sedge.edge.wire.Kind;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.OnnxProgram;
import org.sedge.edge.wire.PinnedKeys;
import org.sedge.edge.wire.Update;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * All decoders for bytes that come from a peer, under the names used by tests/protocol/test_fuzz.py, which generates
 * damaged bytes.
 */
final class Decoders {
    private static final String KEY = String.join("", Collections.nCopies(32, "00"));
    private static final int SIZE = 300;

    private Decoders() {}

    /**
     * Returns the error message in hex, or "" if the bytes are accepted. Any exception other than {@link RemoteError}
     * is a bug.
     */
    static String refusal(String target, byte[] data) {
        try {
            decode(target, data);
            return "";
        } catch (RemoteError error) {
            return Hex.encode(error.getMessage().getBytes(StandardCharsets.UTF_8));
        }
    }

    private static void decode(String target, byte[] data) throws RemoteError {
        switch (target) {
            case "frame":
                Frame.open(data, "topic", null, Frame.VERSIONS);
                break;
            case "body":
                body(data);
                break;
            case "vector":
                SparseVector.decode(data, SIZE);
                break;
            case "update":
                Update.decode(data);
                break;
            case "program":
                OnnxProgram.check(data);
                break;
            case "bundle":
                Bundle.unpack(data);
                break;
            case "policy":
                policy(data);
                break;
            default:
                throw new AssertionError(target);
        }
    }

    /** Decodes the body of a frame, whose kind is chosen by the first byte. */
    private static void body(byte[] data) throws RemoteError {
        List<Kind> kinds = new ArrayList<>();
        for (Kind kind : Kind.values()) {
            if (kind.schema != null) {
                kinds.add(kind);
            }
        }
        int first = data.length == 0 ? 0 : data[0] & 0xff;
        byte[] rest = data.length == 0 ? data : Arrays.copyOfRange(data, 1, data.length);
        new Frame(kinds.get(first % kinds.size()), rest, 1, 1, null, 0).message();
    }

    /** Decodes a policy without checking its key and signature. */
    private static void policy(byte[] data) throws RemoteError {
        try {
            Trust trust = new Trust(new PinnedKeys(Collections.singletonList(KEY)), null, null, null);
            trust.policyOf(Order.SCHEMA.empty().with(Order.POLICY, data));
        } catch (RemoteError error) {
            throw error;
        } catch (SedgeException error) { // could only concern a pinned key or the disk
            throw new AssertionError(error);
        }
    }
}
