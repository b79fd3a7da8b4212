package org.sedge.edge.wire;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The place of every tensor in theta, one vector of n float32 (spec/bundle.md, B6 to B8). */
public final class Layout {
    private static final int MAX_PARAMETERS = 1 << 28;
    private static final int MAX_TENSORS = 4096;
    private static final int MAX_NAME = 256;
    private static final int MAX_RANK = 32;

    /** One named slice of theta: the elements {@code from} to {@code to}, this one not included. */
    public static final class Tensor {
        public final String name;
        public final int from;
        public final int to;
        /** Whether it is a running mean or variance, which is not trained. */
        public final boolean statistic;

        Tensor(String name, int from, int to, boolean statistic) {
            this.name = name;
            this.from = from;
            this.to = to;
            this.statistic = statistic;
        }
    }

    public final List<Tensor> tensors = new ArrayList<>();
    /** n. */
    public final int size;
    /** SHA-256 of names, shapes and roles. */
    public final byte[] hash;

    /** From the manifest's JSON. Throws {@code IllegalArgumentException} for a layout that breaks a rule. */
    Layout(Object json) {
        List<?> rows = Checked.list(Checked.map(json, "layout"), "tensors");
        if (rows.isEmpty() || rows.size() > MAX_TENSORS) {
            throw new IllegalArgumentException(rows.size() + " tensors, expected 1 to " + MAX_TENSORS);
        }
        List<Object> hashed = new ArrayList<>();
        long offset = 0;
        for (Object row : rows) {
            Map<?, ?> found = Checked.map(row, "tensor");
            String name = Checked.text(found, "name");
            List<?> shape = Checked.list(found, "shape");
            int length = name.codePointCount(0, name.length());
            if (length < 1 || length > MAX_NAME || shape.size() > MAX_RANK || find(name) != null) {
                throw new IllegalArgumentException("tensor '" + name + "': its name repeats, or is longer than "
                        + MAX_NAME + ", or it has more than " + MAX_RANK + " extents");
            }
            if (Checked.integer(found, "offset") != offset) {
                throw new IllegalArgumentException("tensor '" + name + "': expected offset " + offset);
            }
            String role = found.containsKey("role") ? Checked.text(found, "role") : "parameter";
            if (!role.equals("parameter") && !role.equals("statistic")) {
                throw new IllegalArgumentException("tensor '" + name + "': role '" + role + "' is unknown");
            }
            long elements = 1;
            for (Object extent : shape) {
                if (!(extent instanceof Long) || (Long) extent < 1 || (Long) extent > MAX_PARAMETERS) {
                    throw new IllegalArgumentException("tensor '" + name + "': shape " + shape);
                }
                elements = Math.min(elements * (Long) extent, 2L * MAX_PARAMETERS);
            }
            if (offset + elements > MAX_PARAMETERS) {
                throw new IllegalArgumentException("more than " + MAX_PARAMETERS + " parameters");
            }
            tensors.add(new Tensor(name, (int) offset, (int) (offset + elements), role.equals("statistic")));
            hashed.add(Arrays.asList(name, shape, role));
            offset += elements;
        }
        size = (int) offset;
        hash = Digests.sha256(MsgPack.pack(hashed));
    }

    /** The tensor of a name; null where there is none. */
    public Tensor find(String name) {
        for (Tensor tensor : tensors) {
            if (tensor.name.equals(name)) {
                return tensor;
            }
        }
        return null;
    }

    /** The tensors of these names, in order. Throws {@code IllegalArgumentException} for a name that there is not. */
    public List<Tensor> named(Collection<String> names) {
        Set<String> wanted = new HashSet<>(names);
        List<Tensor> found = new ArrayList<>();
        for (Tensor tensor : tensors) {
            if (wanted.remove(tensor.name)) {
                found.add(tensor);
            }
        }
        if (!wanted.isEmpty()) {
            throw new IllegalArgumentException("no tensor named '" + wanted.iterator().next() + "'");
        }
        return found;
    }
}
