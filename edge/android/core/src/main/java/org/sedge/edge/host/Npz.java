package org.sedge.edge.host;

import org.sedge.edge.Examples;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.DataError;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;

/** Examples from numpy's .npz with arrays x (N, ...) and y (N,). */
public final class Npz {
    private static final Pattern HEADER = Pattern.compile(
            "'descr': *'([<|][fiub][1248])'.*'fortran_order': *False.*'shape': *\\(([0-9, ]*)\\)");

    /** One array: its type by numpy's letter, its shape, its numbers. */
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
                throw new IllegalArgumentException("expected a plain little-endian array in C order");
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
            return kind == 'f' ? (size == 4 ? data.getFloat(4 * i) : data.getDouble(8 * i)) : integer(i);
        }

        long integer(int i) {
            long value = size == 1 ? data.get(i) : size == 2 ? data.getShort(2 * i)
                    : size == 4 ? data.getInt(4 * i) : data.getLong(8 * i);
            return kind == 'u' && size < 8 ? value & (1L << 8 * size) - 1 : value;
        }
    }

    private Npz() {}

    /** The examples; x of unsigned bytes are pixels, scaled to 0 to 1. Throws {@code DataError} for any other file. */
    public static Examples read(File file) throws SedgeException {
        try {
            Map<String, Array> arrays = arrays(file);
            Array x = arrays.get("x.npy");
            Array y = arrays.get("y.npy");
            if (x == null || y == null || y.shape.length != 1 || y.kind == 'f' || x.shape.length == 0) {
                throw new IllegalArgumentException("expected x (N, ...) and y (N,) of whole numbers");
            }
            float[] inputs = new float[x.count()];
            for (int i = 0; i < inputs.length; i++) {
                float value = (float) x.number(i);
                inputs[i] = x.kind == 'u' && x.size == 1 ? value / 255f : value;
            }
            long[] labels = new long[y.count()];
            for (int i = 0; i < labels.length; i++) {
                labels[i] = y.integer(i);
            }
            return new Examples(inputs, Arrays.copyOfRange(x.shape, 1, x.shape.length), labels);
        } catch (IOException | RuntimeException error) {
            throw new DataError(file + ": not an .npz with plain arrays x and y: " + error.getMessage());
        }
    }

    private static Map<String, Array> arrays(File file) throws IOException {
        Map<String, Array> found = new HashMap<>();
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
