package org.sedge.edge;

import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.SedgeException.ConfigError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.host.Npz;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.BoundProgram;
import org.sedge.edge.wire.Bundle;

import java.io.File;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Writes a model to one file that other programs can read, in two of the formats defined in the protocol's
 * host/model_files.py.
 */
final class ModelFile {
    private static final String PIXELS = "unsigned 8-bit values divided by 255";
    private static final int IMAGE_NDIM = 3; // (C, H, W)

    private ModelFile() {}

    /** Writes a bundle's model with the parameters theta (n,). The file appears only once it is complete. */
    static void write(Bundle bundle, float[] theta, File file) throws SedgeException {
        String name = file.getName();
        byte[] data;
        if (name.endsWith(".npz")) {
            data = Npz.write(bundle.layout, theta);
        } else if (name.endsWith(".onnx")) {
            byte[] program = bundle.program("predict", "onnxruntime");
            if (program == null) {
                throw new CodecError("bundle '" + bundle.name + "': no program 'predict' for onnxruntime");
            }
            data = BoundProgram.of(program, "theta", Vectors.bytes(theta), facts(bundle));
        } else {
            throw new ConfigError("file", "'" + file + "'", "a name that ends in .npz or .onnx");
        }
        Disk.replace(file.getAbsoluteFile(), data);
    }

    private static Map<String, String> facts(Bundle bundle) {
        Map<String, String> facts = new LinkedHashMap<>();
        facts.put("name", bundle.name);
        facts.put("outputs", bundle.numClasses > 0 ? "logits" : "values");
        if (bundle.input.dtype.equals("float32") && bundle.input.shape.length == IMAGE_NDIM) {
            facts.put("pixels", PIXELS);
        }
        if (!bundle.labels.isEmpty()) {
            List<String> texts = new ArrayList<>();
            for (String label : bundle.labels) {
                texts.add(json(label));
            }
            facts.put("labels", texts.toString());
        }
        return facts;
    }

    /** Returns a text as a JSON string in ASCII. */
    private static String json(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                json.append('\\').append(one);
            } else if (one < ' ' || one > '~') {
                json.append(String.format("\\u%04x", (int) one));
            } else {
                json.append(one);
            }
        }
        return json.append('"').toString();
    }
}
