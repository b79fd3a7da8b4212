package org.sedge.edge.host;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.DataError;
import org.sedge.edge.wire.Layout;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import java.util.zip.ZipOutputStream;

/** Reads examples from numpy's .npz files. The array x has shape (N, ...), and the array y may be missing. */
public final class Npz {
    private static final Pattern HEADER = Pattern.compile(
            "'descr': *'([<|](?:f[48]|[iub][1248]))'.*'fortran_order': *False.*'shape': *\\(([0-9, ]*)\\)");

    /** Names that people use for the array y. */
    private static final Pattern TARGET = Pattern.compile("(?im)^(?:y|y_.*|labels?|targets?)\\.npy$");
    private static final List<String> NOT_INPUTS = Arrays.asList("y", "group");
    private static final int IMAGES_NDIM = 4;

    /** An array: its type as numpy's letter, its shape and its values. */
    private static final class Array {
        final char kind;
        final int size;
        final long[] shape;
        final ByteBuffer data;

        Array(byte[] file) {
            ByteBuffer in = ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN);
            boolean old = in.get(6) == 1;
            int length = old ? in.getShort(8) & 0xffff : in.getInt(8);
            int from = old ? 10 : 12;
            Matcher found = HEADER.matcher(new String(file, from, length, StandardCharsets.ISO_8859_1));
            if (in.getInt(0) != 0x4d554e93 || !found.find()) { // \x93NUM
                throw new IllegalArgumentException("expected a little-endian array of numbers in C order, no float16");
            }
            kind = found.group(1).charAt(1);
            size = found.group(1).charAt(2) - '0';
            String[] extents = found.group(2).trim().isEmpty() ? new String[0] : found.group(2).split(",");
            shape = new long[extents.length];
            for (int i = 0; i < shape.length; i++) {
                shape[i] = Long.parseLong(extents[i].trim());
            }
            in.position(from + length);
            data = in.slice().order(ByteOrder.LITTLE_ENDIAN);
        }

        int count() {
            return data.remaining() / size;
        }

        double number(int i) {
            return size == 4 ? data.getFloat(4 * i) : data.getDouble(8 * i);
        }

        long integer(int i) {
            long value = size == 1 ? data.get(i) : size == 2 ? data.getShort(2 * i)
                    : size == 4 ? data.getInt(4 * i) : data.getLong(8 * i);
            return kind == 'u' && size < 8 ? value & (1L << 8 * size) - 1 : value;
        }
    }

    private Npz() {}

    /**
     * Reads examples exactly as the Python agent does. Unsigned bytes in images (N, C, H, W) are pixels, which are
     * scaled to the range from 0 to 1. All other unsigned bytes, booleans and floating-point numbers become float32,
     * and integers become int64.
     *
     * @throws DataError if the file has no such examples
     */
    public static Examples read(File file) throws SedgeException {
        Map<String, Array> arrays = read(file, "x and y");
        Array x = arrays.get("x.npy");
        Array y = arrays.get("y.npy");
        if (x == null || y == null && TARGET.matcher(String.join("\n", arrays.keySet())).find()) {
            throw new DataError(file + ": the arrays are " + String.join(", ", arrays.keySet()).replace(".npy", "")
                    + ", expected the names x and y");
        }
        try {
            Rows inputs = inputs(x, "x");
            if (y != null && y.kind == 'b') {
                throw new DataError("y is bool, expected numbers: integers are labels");
            }
            Rows targets = y == null ? null : rows(y, "y");
            return new Examples(inputs, targets);
        } catch (DataError error) {
            throw new DataError(file + ": " + error.getMessage());
        }
    }

    /** Returns an .npz file that has the tensors of theta (n,), each under its name. */
    public static byte[] write(Layout layout, float[] theta) {
        ByteArrayOutputStream made = new ByteArrayOutputStream(4 * theta.length + (1 << 12));
        try (ZipOutputStream out = new ZipOutputStream(made)) {
            for (Layout.Tensor tensor : layout.tensors) {
                String shape = tensor.shape.toString();
                String extents = shape.substring(1, shape.length() - 1) + (tensor.shape.size() == 1 ? "," : "");
                StringBuilder head = new StringBuilder(
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + extents + "), }");
                while ((10 + head.length() + 1) % 64 != 0) {
                    head.append(' ');
                }
                head.append('\n');
                ByteBuffer file = ByteBuffer.allocate(10 + head.length() + 4 * (tensor.to - tensor.from))
                        .order(ByteOrder.LITTLE_ENDIAN);
                // The magic string \x93NUMPY, version 1.0.
                file.putInt(0x4d554e93).putShort((short) 0x5950).put((byte) 1).put((byte) 0);
                file.putShort((short) head.length()).put(head.toString().getBytes(StandardCharsets.US_ASCII));
                file.asFloatBuffer().put(theta, tensor.from, tensor.to - tensor.from);
                out.putNextEntry(new ZipEntry(tensor.name + ".npy"));
                out.write(file.array());
            }
        } catch (IOException error) {
            throw new IllegalStateException(error); // cannot happen when writing to memory
        }
        return made.toByteArray();
    }

    /**
     * Reads a file's inputs, keyed by name: all its arrays except y and group, converted as in {@link #read}.
     */
    public static Map<String, Rows> readInputs(File file) throws SedgeException {
        Map<String, Rows> found = new LinkedHashMap<>();
        for (Map.Entry<String, Array> entry : read(file, "of inputs by name").entrySet()) {
            String name = entry.getKey().replaceFirst("\\.npy$", "");
            if (!NOT_INPUTS.contains(name)) {
                found.put(name, inputs(entry.getValue(), file + ": " + name));
            }
        }
        return found;
    }

    private static Map<String, Array> read(File file, String expected) throws DataError {
        try {
            Map<String, Array> arrays = arrays(file);
            if (arrays.isEmpty()) {
                throw new IllegalArgumentException("expected a zip archive of arrays");
            }
            return arrays;
        } catch (IOException | RuntimeException error) {
            throw new DataError(file + ": not an .npz with plain arrays " + expected + ": " + error.getMessage());
        }
    }

    private static Rows inputs(Array array, String name) throws SedgeException {
        return array.size == 1 && array.kind != 'i' ? bytes(array, name) : rows(array, name);
    }

    /** Converts unsigned bytes or booleans to scaled pixels or plain numbers. */
    private static Rows bytes(Array x, String name) throws SedgeException {
        float full = x.kind == 'u' && x.shape.length == IMAGES_NDIM ? 255f : 1f;
        float[] scaled = new float[x.count()];
        for (int i = 0; i < scaled.length; i++) {
            scaled[i] = x.integer(i) / full;
        }
        return new Rows(scaled, rowShape(x, name));
    }

    private static Rows rows(Array array, String name) throws SedgeException {
        long[] shape = rowShape(array, name);
        if (array.kind == 'f') {
            float[] numbers = new float[array.count()];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = (float) array.number(i);
            }
            return new Rows(numbers, shape);
        }
        long[] numbers = new long[array.count()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = array.integer(i);
        }
        return new Rows(numbers, shape);
    }

    private static long[] rowShape(Array array, String name) throws DataError {
        if (array.shape.length == 0) {
            throw new DataError(name + " is a single value, expected an array (N, ...)");
        }
        return Arrays.copyOfRange(array.shape, 1, array.shape.length);
    }

    private static Map<String, Array> arrays(File file) throws IOException {
        Map<String, Array> found = new LinkedHashMap<>();
        try (ZipInputStream in = new ZipInputStream(new FileInputStream(file))) {
            for (ZipEntry entry = in.getNextEntry(); entry != null; entry = in.getNextEntry()) {
                found.put(entry.getName(), new Array(whole(in)));
            }
        }
        return found;
    }

    private static byte[] whole(InputStream in) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] buffer = new byte[1 << 16];
        for (int count = in.read(buffer); count >= 0; count = in.read(buffer)) {
            out.write(buffer, 0, count);
        }
        return out.toByteArray();
    }
}
