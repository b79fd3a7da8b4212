package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.wire.Schema.Field;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** The position of every tensor in theta, the vector of all n float32 parameters (spec/bundle.md, B6 to B8). */
public final class Layout {
    private static final int MAX_PARAMETERS = 1 << 28;
    private static final Schema<Record> TENSOR = Record.schema();
    private static final Field<Record, String> NAME = TENSOR.required("name", Type.text(1, 256));
    private static final Field<Record, List<Long>> SHAPE =
            TENSOR.required("shape", Type.list(Type.integer(1, MAX_PARAMETERS), 0, 32));
    private static final Field<Record, Long> OFFSET = TENSOR.required("offset", Type.COUNT);
    private static final Field<Record, String> ROLE =
            TENSOR.optional("role", Type.oneOf("parameter", "statistic"), "parameter");
    private static final Schema<Record> SCHEMA = Record.schema();
    private static final Field<Record, List<Record>> TENSORS = SCHEMA.required("tensors", Type.list(TENSOR, 1, 4096));

    /** Reads a bundle's layout and checks its consistency. */
    public static final Type<Layout> TYPE = new Type<Layout>() {
        @Override
        public Layout read(Object value) {
            return new Layout(SCHEMA.read(value).get(TENSORS));
        }
    };

    /** A named slice of theta: the elements from {@code from} up to, but not including, {@code to}. */
    public static final class Tensor {
        public final String name;
        public final List<Long> shape;
        public final int from;
        public final int to;
        /** Whether the tensor is a running mean or variance, which is not trained. */
        public final boolean statistic;

        Tensor(String name, List<Long> shape, int from, int to, boolean statistic) {
            this.name = name;
            this.shape = shape;
            this.from = from;
            this.to = to;
            this.statistic = statistic;
        }
    }

    public final List<Tensor> tensors = new ArrayList<>();
    /** The number n of elements of theta. */
    public final int size;
    /** The SHA-256 of the names, shapes and roles of all tensors. */
    public final byte[] hash;

    private Layout(List<Record> rows) {
        List<Object> hashed = new ArrayList<>();
        long offset = 0;
        for (Record row : rows) {
            String name = row.get(NAME);
            if (find(name) != null) {
                throw new IllegalArgumentException("tensor '" + name + "': duplicate name");
            }
            if (row.get(OFFSET) != offset) {
                throw new IllegalArgumentException("tensor '" + name + "': expected offset " + offset);
            }
            long elements = 1;
            for (long extent : row.get(SHAPE)) {
                elements = Math.min(elements * extent, 2L * MAX_PARAMETERS);
            }
            if (offset + elements > MAX_PARAMETERS) {
                throw new IllegalArgumentException("more than " + MAX_PARAMETERS + " parameters");
            }
            String role = row.get(ROLE);
            tensors.add(new Tensor(name, row.get(SHAPE), (int) offset, (int) (offset + elements), role.equals("statistic")));
            hashed.add(Arrays.asList(name, row.get(SHAPE), role));
            offset += elements;
        }
        size = (int) offset;
        hash = Digests.sha256(MsgPack.pack(hashed));
    }

    /** Returns the tensor with this name, or null if there is none. */
    public Tensor find(String name) {
        for (Tensor tensor : tensors) {
            if (tensor.name.equals(name)) {
                return tensor;
            }
        }
        return null;
    }

    /**
     * Returns the tensors with these names, in the layout's order.
     *
     * @param key the setting that contains the names, for messages
     * @throws CodecError for an unknown name
     */
    public List<Tensor> named(Collection<String> names, String key) throws CodecError {
        Set<String> wanted = new HashSet<>(names);
        List<Tensor> found = new ArrayList<>();
        for (Tensor tensor : tensors) {
            if (wanted.remove(tensor.name)) {
                found.add(tensor);
            }
        }
        if (!wanted.isEmpty()) {
            // The name comes from the coordinator and may contain line breaks; log it as one line.
            String line = Collections.min(wanted).replace("\n", "\\n");
            throw new CodecError(key + ": no tensor named '" + line + "'");
        }
        return found;
    }
}
