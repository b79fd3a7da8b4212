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
    /**
     * Parsed JSON takes twenty times its size in memory. The layout of 4096 tensors takes only a fifth of this limit.
     */
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

    static { // for the coordinator, which hands out no work that needs more
        PROGRAM.optional("memory_bytes", Type.integer(0, 1L << 50), 0L);
        PROGRAM.optional("multiply_adds", Type.integer(0, 1L << 50), 0L);
    }

    /** The coded vector of frozen data has 4 bytes per value plus at most this many: a header and five lengths. */
    private static final int MAX_DENSE_OVERHEAD = 32;

    private static final Schema<Record> FROZEN = Record.schema();
    private static final Field<Record, Layout> FROZEN_LAYOUT = FROZEN.required("layout", Layout.TYPE);
    private static final Field<Record, Manifest> FROZEN_BLOB = FROZEN.required("blob", Manifest.IN_JSON);

    private static final Schema<Record> PART = Record.schema();
    private static final Field<Record, String> PART_NAME = PART.required("name", Type.text(0, MAX_BYTES));
    private static final Field<Record, String> PART_DTYPE = PART.required("dtype", Type.oneOf("float32", "int64"));
    private static final Field<Record, List<Long>> PART_SHAPE =
            PART.required("shape", Type.list(Type.integer(1, 1 << 28), 0, 32));

    /** The description of the loss. It is only checked here, because the programs compute the loss. */
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

    /** One row of x or y: its element type, named as in numpy, and its shape. */
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

        /** Returns the number of values in a row. */
        public long size() {
            long size = 1;
            for (long extent : shape) {
                size = Math.multiplyExact(size, extent);
            }
            return size;
        }
    }

    /** One of a model's several inputs: its name, and the type of its row. */
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
    /** null if the input is also the target */
    public final Row target;
    /** The number of classes, or 0 for a model that is not a classifier. */
    public final long numClasses;
    /** The number of tokens: integers in x must be below it. It is 0 if unknown. */
    public final long vocabulary;
    public final boolean usesBatchStatistics;
    /** The number of random numbers that a training step uses. */
    public final int noise;
    /** The tensors that no device trains; null if there are none. */
    public final Layout frozenLayout;
    public final Metric metric;
    /** Describes the inputs of the guided loss; null if the bundle has no such loss. */
    public final Guide guide;
    /** The names of the classes, to show to people. The list may be empty. */
    public final List<String> labels;
    /**
     * If the model has several inputs: the inputs in the order in which a row of {@code input} packs them. Otherwise
     * empty.
     */
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
            throw new IllegalArgumentException("parts of " + size + " numbers do not fit an input of " + input.dtype
                    + " " + Arrays.toString(input.shape));
        }
        return Collections.unmodifiableList(found);
    }

    private void check(Record program) {
        String file = program.get(FILE);
        if (guide == null && program.get(PROGRAM_NAME).equals("guided")) {
            throw new IllegalArgumentException("program 'guided' without a guide");
        }
        if (file.indexOf('/') >= 0 || file.equals(".") || file.equals("..")) {
            throw new IllegalArgumentException("program file '" + file + "' contains a path");
        }
        if (!files.containsKey(file)) {
            throw new IllegalArgumentException("program file '" + file + "' is missing");
        }
        if (!Hex.encode(Digests.sha256(files.get(file))).equals(program.get(SHA256))) {
            throw new IllegalArgumentException("'" + file + "' does not match the manifest's sha256");
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
                throw new IllegalArgumentException("frozen: tensor '" + tensor.name + "' is also in the layout");
            }
        }
    }

    /**
     * Unpacks the bundle in a blob.
     *
     * @throws CodecError if the bundle breaks a rule
     */
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

    /** Returns a copy of the SHA-256 of the manifest's bytes, by which policies refer to the bundle. */
    public byte[] manifestHash() {
        return manifestHash.clone();
    }

    /**
     * Returns true if a row's outputs have the shape (C, ...), with the classes first, and false if it is (..., C). The
     * labels of the row have the shape (...).
     */
    public boolean classesFirst(long[] outputs) {
        return target == null || Arrays.equals(Arrays.copyOfRange(outputs, 1, outputs.length), target.shape);
    }

    /** Returns true if padding a batch with rows of weight 0 does not change a step. */
    public boolean paddingIsSafe() {
        return !usesBatchStatistics && noise == 0;
    }

    /** Returns the SHA-256 of every program for a backend, in hexadecimal digits and in the manifest's order. */
    public List<String> programHashes(String backend) {
        List<String> found = new ArrayList<>();
        for (Record program : programs) {
            if (program.get(BACKEND).equals(backend)) {
                found.add(program.get(SHA256));
            }
        }
        return found;
    }

    /** Returns the file of one program for a backend, or null if there is none. */
    public byte[] program(String kind, String backend) {
        for (Record program : programs) {
            if (program.get(PROGRAM_NAME).equals(kind) && program.get(BACKEND).equals(backend)) {
                return files.get(program.get(FILE));
            }
        }
        return null;
    }
}
