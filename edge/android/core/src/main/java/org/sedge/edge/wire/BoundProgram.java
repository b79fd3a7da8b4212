package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;

/**
 * Writes a model into an ONNX program. The resulting bytes are identical to those written by the protocol's
 * wire/binding.py.
 */
public final class BoundProgram {
    private static final int GRAPH = 7; // fields of ModelProto
    private static final int METADATA = 14;
    private static final int INITIALIZER = 5; // fields of GraphProto
    private static final int INPUT = 11;
    private static final byte[] DIMS = {1 << 3}; // fields of TensorProto, here with their wire types
    private static final byte[] FLOAT = {2 << 3, 1};
    private static final int NAME = 8;
    private static final int RAW_DATA = 9;
    private static final int BYTES = 2; // a wire type

    private BoundProgram() {}

    /**
     * Replaces the program's input {@code name} (n,) with constant values, and adds metadata for people.
     *
     * @param values little-endian float32
     * @throws CodecError if the program has no such input
     */
    public static byte[] of(byte[] program, String name, byte[] values, Map<String, String> facts) throws CodecError {
        ByteArrayOutputStream made = new ByteArrayOutputStream(program.length + values.length + 1024);
        boolean bound = false;
        try {
            for (Part part = Part.first(program); part != null; part = part.next()) {
                if (part.number == GRAPH) {
                    byte[] kept = without(part.content(), name);
                    bound |= kept != null;
                    put(made, GRAPH, kept == null ? part.content() : kept, tensor(name, values));
                } else {
                    made.write(program, part.from, part.to - part.from);
                }
            }
        } catch (IndexOutOfBoundsException | IllegalArgumentException error) {
            throw new CodecError("program: no ONNX program", error);
        }
        if (!bound) {
            throw new CodecError("program: expected one input named " + name);
        }
        for (Map.Entry<String, String> fact : facts.entrySet()) {
            ByteArrayOutputStream entry = new ByteArrayOutputStream();
            put(entry, 1, fact.getKey().getBytes(StandardCharsets.UTF_8));
            put(entry, 2, fact.getValue().getBytes(StandardCharsets.UTF_8));
            put(made, METADATA, entry.toByteArray());
        }
        return made.toByteArray();
    }

    /** Returns the graph without one of its inputs, or null if it has no input with this name. */
    private static byte[] without(byte[] graph, String name) {
        ByteArrayOutputStream kept = new ByteArrayOutputStream(graph.length);
        for (Part part = Part.first(graph); part != null; part = part.next()) {
            if (part.number != INPUT || !named(part.content(), name)) {
                kept.write(graph, part.from, part.to - part.from);
            }
        }
        return kept.size() == graph.length ? null : kept.toByteArray();
    }

    private static boolean named(byte[] input, String name) {
        for (Part part = Part.first(input); part != null; part = part.next()) {
            if (part.number == 1 && Arrays.equals(part.content(), name.getBytes(StandardCharsets.UTF_8))) {
                return true;
            }
        }
        return false;
    }

    /** Encodes a tensor as an initializer of the graph. */
    private static byte[] tensor(String name, byte[] values) {
        ByteArrayOutputStream head = new ByteArrayOutputStream();
        head.write(DIMS, 0, DIMS.length);
        varint(head, values.length / 4);
        head.write(FLOAT, 0, FLOAT.length);
        put(head, NAME, name.getBytes(StandardCharsets.UTF_8));
        ByteArrayOutputStream raw = new ByteArrayOutputStream(values.length + 16);
        put(raw, RAW_DATA, values);
        ByteArrayOutputStream made = new ByteArrayOutputStream(values.length + 64);
        put(made, INITIALIZER, head.toByteArray(), raw.toByteArray());
        return made.toByteArray();
    }

    private static void put(ByteArrayOutputStream out, int number, byte[]... contents) {
        long size = 0;
        for (byte[] content : contents) {
            size += content.length;
        }
        varint(out, number << 3 | BYTES);
        varint(out, size);
        for (byte[] content : contents) {
            out.write(content, 0, content.length);
        }
    }

    private static void varint(ByteArrayOutputStream out, long value) {
        long rest = value;
        for (; rest > 0x7f; rest >>>= 7) {
            out.write((int) (rest & 0x7f | 0x80));
        }
        out.write((int) rest);
    }

    /** A field of a protobuf message that {@link OnnxProgram} has accepted: a varint, or length-delimited. */
    private static final class Part {
        final byte[] data;
        final int from;
        final int to;
        final int number;
        private final int content;

        private Part(byte[] data, int from) {
            ByteBuffer in = ByteBuffer.wrap(data);
            in.position(from);
            long tag = read(in);
            long value = read(in);
            boolean sized = (tag & 7) == BYTES;
            if (tag >>> 3 > Integer.MAX_VALUE || (tag & 7) != 0 && !sized || sized && value > in.remaining()) {
                throw new IllegalArgumentException("no field");
            }
            this.data = data;
            this.from = from;
            number = (int) (tag >>> 3);
            content = in.position();
            to = sized ? content + (int) value : content;
        }

        static Part first(byte[] data) {
            return data.length == 0 ? null : new Part(data, 0);
        }

        Part next() {
            return to == data.length ? null : new Part(data, to);
        }

        byte[] content() {
            return Arrays.copyOfRange(data, content, to);
        }

        private static long read(ByteBuffer in) {
            long value = 0;
            for (int shift = 0; shift < 64; shift += 7) {
                byte one = in.hasRemaining() ? in.get() : (byte) 0x80;
                value |= (long) (one & 0x7f) << shift;
                if (one >= 0) {
                    return value;
                }
            }
            throw new IllegalArgumentException("not a varint");
        }
    }
}
