package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.codec.Compression;
import org.sedge.edge.wire.Schema.Field;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What a device needs to train one model (spec/bundle.md). */
public final class Bundle {
    private static final long FORMAT = 1;
    private static final int MAX_BYTES = 1 << 26;
    private static final int MAX_BATCH = 65536;
    private static final Schema SCHEMA = Schema.whole();
    private static final Field<byte[]> MANIFEST = SCHEMA.required("manifest", Type.bytes(0, MAX_BYTES));
    private static final Field<Map<String, byte[]>> FILES =
            SCHEMA.required("files", Type.map(Type.bytes(0, MAX_BYTES)));

    /** One row of x or y: its element type by numpy's name, and its shape. */
    public static final class Row {
        public final String dtype;
        public final long[] shape;

        Row(Map<?, ?> json) {
            dtype = Checked.text(json, "dtype");
            List<?> extents = Checked.list(json, "shape");
            shape = new long[extents.size()];
            for (int i = 0; i < shape.length; i++) {
                shape[i] = (Long) extents.get(i);
            }
        }
    }

    public final String name;
    public final Layout layout;
    public final int batchSize;
    public final Row input;
    public final Row target;
    /** Labels are below this; 0 for a model that does not classify. */
    public final long numClasses;
    public final boolean usesBatchStatistics;
    /** Random numbers that a step takes. */
    public final int noise;
    /** The tensors that no device trains; null: there are none. */
    public final Layout frozenLayout;
    /** The blob of their values. */
    public final Manifest frozenBlob;
    private final List<Map<?, ?>> programs = new ArrayList<>();
    private final Map<String, byte[]> files;

    private Bundle(Map<?, ?> json, Map<String, byte[]> files) {
        if (!Long.valueOf(FORMAT).equals(json.get("format"))) {
            throw new IllegalArgumentException("format " + json.get("format") + ", this version reads " + FORMAT);
        }
        this.files = files;
        name = Checked.text(json, "name");
        layout = new Layout(json.get("layout"));
        batchSize = (int) Math.min(Checked.integer(json, "batch_size"), MAX_BATCH + 1);
        input = new Row(Checked.map(json, "input"));
        target = new Row(Checked.map(json, "target"));
        numClasses = Checked.integer(json, "num_classes");
        usesBatchStatistics = Checked.bool(json, "uses_batch_statistics");
        noise = json.containsKey("noise") ? (int) Checked.integer(json, "noise") : 0;
        if (batchSize < 1 || batchSize > MAX_BATCH || noise < 0 || !json.containsKey("verification")) {
            throw new IllegalArgumentException("batch_size, noise or verification: missing or out of range");
        }
        for (Object program : Checked.list(json, "programs")) {
            add(Checked.map(program, "program"));
        }
        Object frozen = json.get("frozen");
        frozenLayout = frozen == null ? null : new Layout(Checked.map(frozen, "frozen").get("layout"));
        frozenBlob = frozen == null ? null : manifest(Checked.map((Map<?, ?>) frozen, "blob"));
        if (frozen != null && frozenBlob.size != 4L * frozenLayout.size) {
            throw new IllegalArgumentException("frozen: a blob of " + frozenBlob.size + " bytes");
        }
        for (Layout.Tensor tensor : frozen == null ? new ArrayList<Layout.Tensor>() : frozenLayout.tensors) {
            if (layout.find(tensor.name) != null) {
                throw new IllegalArgumentException("frozen: '" + tensor.name + "' is a tensor of the layout");
            }
        }
    }

    private void add(Map<?, ?> program) {
        String file = Checked.text(program, "file");
        String kind = Checked.text(program, "name");
        Checked.text(program, "backend");
        if (file.isEmpty() || file.indexOf('/') >= 0 || file.equals(".") || file.equals("..")) {
            throw new IllegalArgumentException("program file '" + file + "' is a path");
        }
        if (!kind.equals("gradient") && !kind.equals("evaluate") && !kind.equals("predict")) {
            throw new IllegalArgumentException("unknown program '" + kind + "'");
        }
        byte[] data = files.get(file);
        if (data == null || !Hex.encode(Digests.sha256(data)).equals(Checked.text(program, "sha256"))) {
            throw new IllegalArgumentException("file '" + file + "' is missing, or has another sha256");
        }
        programs.add(program);
    }

    private static Manifest manifest(Map<?, ?> json) {
        Map<Object, Object> found = new HashMap<>(json);
        found.put("sha256", Base64.getDecoder().decode(Checked.text(json, "sha256")));
        found.put("digests", Base64.getDecoder().decode(Checked.text(json, "digests")));
        return Manifest.TYPE.read(found);
    }

    /** The bundle in a blob. Throws {@code CodecError} for one that breaks a rule. */
    public static Bundle unpack(byte[] blob) throws CodecError {
        try {
            Struct packed = SCHEMA.decode(Compression.inflate(blob, MAX_BYTES));
            String text = new String(packed.get(MANIFEST), StandardCharsets.UTF_8);
            return new Bundle(Checked.map(Json.parse(text), "manifest"), packed.get(FILES));
        } catch (IllegalArgumentException | ClassCastException error) {
            throw new CodecError("bundle: " + error.getMessage(), error);
        }
    }

    /** The file of one program for a backend; null where there is none. */
    public byte[] program(String kind, String backend) {
        for (Map<?, ?> program : programs) {
            if (program.get("name").equals(kind) && program.get("backend").equals(backend)) {
                return files.get(program.get("file"));
            }
        }
        return null;
    }
}
