package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.wire.Schema.Field;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/** A model with everything that a device needs to train it (spec/bundle.md). */
public final class Bundle {
    private static final long FORMAT = 1;
    private static final int MAX_BYTES = 1 << 26;
    /** Parsed JSON takes twenty times its size in memory. A layout of 4096 tensors has a fifth of this limit. */
    private static final int MAX_MANIFEST_BYTES = 1 << 22;
    private static final int MAX_FILES = 64;
    private static final Schema<Record> PACKED = Record.schema();
    private static final Field<Record, byte[]> MANIFEST = PACKED.required("manifest", Type.bytes(0, MAX_MANIFEST_BYTES));
    private static final Field<Record, Map<String, byte[]>> FILES =
            PACKED.required("files", Type.map(Type.bytes(0, MAX_BYTES), MAX_FILES));

    private static final Schema<Record> ROW = Record.schema();
    private static final Field<Record, String> DTYPE = ROW.required("dtype", Type.oneOf("float32", "int64"));
    private static final Field<Record, List<Long>> SHAPE =
            ROW.required("shape", Type.list(Type.integer(1, 1 << 28), 0, 32));

    private static final Schema<Record> PROGRAM = Record.schema();
    private static final Field<Record, String> PROGRAM_NAME =
            PROGRAM.required("name", Type.oneOf("gradient", "evaluate", "predict", "guided"));
    private static final Field<Record, String> BACKEND = PROGRAM.required("backend", Type.text(0, MAX_BYTES));
    private static final Field<Record, String> FILE = PROGRAM.required("file", Type.text(1, MAX_BYTES));
    private static final Field<Record, String> SHA256 = PROGRAM.required("sha256", Type.text(64, 64));

    /** The bytes that the coded vector of frozen data may have beyond 4 per value: its header and five lengths. */
    private static final int MAX_DENSE_OVERHEAD = 32;

    private static final Schema<Record> FROZEN = Record.schema();
    private static final Field<Record, Layout> FROZEN_LAYOUT = FROZEN.required("layout", Layout.TYPE);
    private static final Field<Record, Manifest> FROZEN_BLOB = FROZEN.required("blob", Manifest.IN_JSON);

    private static final Schema<Record> PART = Record.schema();
    private static final Field<Record, String> PART_NAME = PART.required("name", Type.text(0, MAX_BYTES));
    private static final Field<Record, String> PART_DTYPE = PART.required("dtype", Type.oneOf("float32", "int64"));
    private static final Field<Record, List<Long>> PART_SHAPE =
            PART.required("shape", Type.list(Type.integer(1, 1 << 28), 0, 32));

    /** The loss, which only devices with their own training code compute. */
    private static final Schema<Record> LOSS = Record.schema();

    static {
        LOSS.optional("name", Type.text(1, 256), "cross_entropy");
        LOSS.optional("label_smoothing", Type.number(0, false, Math.nextDown(1.0)), 0.0);
        LOSS.optional("class_weights", Type.list(Type.number(0, false, 1e6), 0, MAX_BYTES), null);
    }

    private static final Schema<Record> SCHEMA = Record.schema();
    private static final Field<Record, String> NAME = SCHEMA.required("name", Type.text(0, MAX_BYTES));
    private static final Field<Record, Layout> LAYOUT = SCHEMA.required("layout", Layout.TYPE);
    private static final Field<Record, Long> BATCH_SIZE = SCHEMA.required("batch_size", Type.integer(1, 65536));
    private static final Field<Record, Record> INPUT = SCHEMA.required("input", ROW);
    private static final Field<Record, Record> TARGET = SCHEMA.required("target", Type.orNil(ROW));
    private static final Field<Record, Long> NUM_CLASSES =
            SCHEMA.required("num_classes", Type.integer(0, 1L << 50));
    private static final Field<Record, Boolean> USES_BATCH_STATISTICS =
            SCHEMA.required("uses_batch_statistics", Type.BOOL);
    private static final Field<Record, Long> NOISE = SCHEMA.optional("noise", Type.integer(0, 1 << 28), 0L);
    private static final Field<Record, List<Record>> PROGRAMS =
            SCHEMA.required("programs", Type.list(PROGRAM, 0, MAX_BYTES));
    private static final Field<Record, Record> FROZEN_DATA = SCHEMA.optional("frozen", Type.orNil(FROZEN), null);
    private static final Field<Record, Metric> METRIC = SCHEMA.optional("metric", Metric.SCHEMA, Metric.ACCURACY);
    private static final Field<Record, List<String>> LABELS =
            SCHEMA.optional("labels", Type.list(Type.text(0, MAX_BYTES), 0, MAX_BYTES), Collections.<String>emptyList());
    private static final Field<Record, Long> VOCABULARY =
            SCHEMA.optional("vocabulary", Type.integer(0, 1L << 50), 0L);
    private static final Field<Record, Record> GUIDE = SCHEMA.optional("guide", Type.orNil(Guide.SCHEMA), null);
    private static final Field<Record, List<Record>> PARTS =
            SCHEMA.optional("parts", Type.list(PART, 0, MAX_BYTES), Collections.<Record>emptyList());

    static {
        SCHEMA.optional("loss", LOSS, null);
        SCHEMA.required("verification", Type.ANY);
    }

    /** One row of x or y: its element type by numpy's name, and its shape. */
    public static final class Row {
        public final String dtype;
        public final long[] shape;

        Row(Record row) {
            this(row.get(DTYPE), row.get(SHAPE));
        }

        private Row(String dtype, List<Long> extents) {
            this.dtype = dtype;
            shape = new long[extents.size()];
            for (int i = 0; i < shape.length; i++) {
                shape[i] = extents.get(i);
            }
        }

        /** The number of values in it. */
        public long size() {
            long size = 1;
            for (long extent : shape) {
                size = Math.multiplyExact(size, extent);
            }
            return size;
        }
    }

    /** One of several inputs: its name and the type of its row. */
    public static final class Part {
        public final String name;
        public final Row row;

        Part(Record part) {
            name = part.get(PART_NAME);
            row = new Row(part.get(PART_DTYPE), part.get(PART_SHAPE));
        }
    }

    public final String name;
    public final Layout layout;
    public final int batchSize;
    public final Row input;
    /** null: the input is the target. */
    public final Row target;
    /** The number of classes; 0 for a model that does not classify. */
    public final long numClasses;
    /** Integers of x are below this; 0 if unknown. */
    public final long vocabulary;
    public final boolean usesBatchStatistics;
    /** The number of random numbers that a step takes. */
    public final int noise;
    /** The tensors that no device trains; null: there are none. */
    public final Layout frozenLayout;
    public final Metric metric;
    /** The guide of the guided loss; null: there is none. */
    public final Guide guide;
    /** The classes' names, for people; may be empty. */
    public final List<String> labels;
    /** The inputs of a model that has several, in their order in a row of {@code input}; otherwise empty. */
    public final List<Part> parts;
    private final List<Record> programs;
    private final Map<String, byte[]> files;
    private final byte[] manifestHash;

    private Bundle(Record manifest, Map<String, byte[]> files, byte[] manifestHash) {
        this.files = files;
        this.manifestHash = manifestHash;
        name = manifest.get(NAME);
        layout = manifest.get(LAYOUT);
        batchSize = manifest.get(BATCH_SIZE).intValue();
        input = new Row(manifest.get(INPUT));
        target = manifest.get(TARGET) == null ? null : new Row(manifest.get(TARGET));
        numClasses = manifest.get(NUM_CLASSES);
        vocabulary = manifest.get(VOCABULARY);
        usesBatchStatistics = manifest.get(USES_BATCH_STATISTICS);
        noise = manifest.get(NOISE).intValue();
        metric = manifest.get(METRIC);
        guide = manifest.get(GUIDE) == null ? null : new Guide(manifest.get(GUIDE));
        labels = manifest.get(LABELS);
        if (!labels.isEmpty() && labels.size() != numClasses) {
            throw new IllegalArgumentException(labels.size() + " labels, expected " + numClasses
                    + ", one for each class, or none");
        }
        parts = parts(manifest.get(PARTS));
        programs = manifest.get(PROGRAMS);
        for (Record program : programs) {
            check(program);
        }
        Record frozen = manifest.get(FROZEN_DATA);
        frozenLayout = frozen == null ? null : frozen.get(FROZEN_LAYOUT);
        if (frozen != null) {
            checkFrozen(frozen.get(FROZEN_BLOB).size);
        }
    }

    private List<Part> parts(List<Record> rows) {
        List<Part> found = new ArrayList<>();
        long size = 0;
        for (Record row : rows) {
            Part part = new Part(row);
            found.add(part);
            size = Math.addExact(size, part.row.size());
        }
        boolean packed = input.dtype.equals("float32") && input.shape.length == 1 && input.shape[0] == size;
        if (!found.isEmpty() && !packed) {
            throw new IllegalArgumentException("parts of " + size + " numbers in an input of " + input.dtype + " "
                    + Arrays.toString(input.shape));
        }
        return Collections.unmodifiableList(found);
    }

    private void check(Record program) {
        String file = program.get(FILE);
        if (guide == null && program.get(PROGRAM_NAME).equals("guided")) {
            throw new IllegalArgumentException("program 'guided' without a guide");
        }
        if (file.indexOf('/') >= 0 || file.equals(".") || file.equals("..")) {
            throw new IllegalArgumentException("program file '" + file + "' holds a path");
        }
        if (!files.containsKey(file)) {
            throw new IllegalArgumentException("program file '" + file + "' is missing");
        }
        if (!Hex.encode(Digests.sha256(files.get(file))).equals(program.get(SHA256))) {
            throw new IllegalArgumentException("'" + file + "' does not have the manifest's sha256");
        }
    }

    private void checkFrozen(int size) {
        long most = 4L * frozenLayout.size + MAX_DENSE_OVERHEAD;
        if (size > most) {
            throw new IllegalArgumentException("frozen: a blob of " + size + " bytes, expected at most " + most
                    + " for " + frozenLayout.size + " values");
        }
        for (Layout.Tensor tensor : frozenLayout.tensors) {
            if (layout.find(tensor.name) != null) {
                throw new IllegalArgumentException("frozen: tensor '" + tensor.name + "' is in the layout as well");
            }
        }
    }

    /** Unpacks the bundle in a blob. Throws {@code CodecError} if it breaks a rule. */
    public static Bundle unpack(byte[] blob) throws CodecError {
        try {
            Record packed = PACKED.decode(Compression.inflate(blob, MAX_BYTES));
            Object json = Json.parse(new String(packed.get(MANIFEST), StandardCharsets.UTF_8));
            Object format = json instanceof Map ? ((Map<?, ?>) json).get("format") : null;
            if (!Long.valueOf(FORMAT).equals(format)) {
                throw new IllegalArgumentException("bundle format " + format + ", this version reads " + FORMAT);
            }
            return new Bundle(SCHEMA.read(json), packed.get(FILES), Digests.sha256(packed.get(MANIFEST)));
        } catch (IllegalArgumentException | ArithmeticException error) {
            throw new CodecError("bundle: " + error.getMessage(), error);
        }
    }

    /** A copy of the SHA-256 of the manifest's bytes, by which a policy names the bundle. */
    public byte[] manifestHash() {
        return manifestHash.clone();
    }

    /** Whether a row's outputs (C, ...) have the classes first; otherwise they are (..., C), with the labels' extents. */
    public boolean classesFirst(long[] outputs) {
        return target == null || Arrays.equals(Arrays.copyOfRange(outputs, 1, outputs.length), target.shape);
    }

    /** Whether a step may be padded with rows of weight 0. */
    public boolean paddingIsSafe() {
        return !usesBatchStatistics && noise == 0;
    }

    /** The SHA-256 of every program for a backend, in hexadecimal digits, in the manifest's order. */
    public List<String> programHashes(String backend) {
        List<String> found = new ArrayList<>();
        for (Record program : programs) {
            if (program.get(BACKEND).equals(backend)) {
                found.add(program.get(SHA256));
            }
        }
        return found;
    }

    /** The file of one program for a backend; null if there is none. */
    public byte[] program(String kind, String backend) {
        for (Record program : programs) {
            if (program.get(PROGRAM_NAME).equals(kind) && program.get(BACKEND).equals(backend)) {
                return files.get(program.get(FILE));
            }
        }
        return null;
    }
}
