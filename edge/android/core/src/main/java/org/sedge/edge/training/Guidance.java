package org.sedge.edge.training;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.jobs.Vectors;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Guide;
import org.sedge.edge.wire.Messages.Work;

import java.util.HashMap;
import java.util.Map;

/** Assembles the inputs of an order's guided loss. The error messages are the same as the Python agent's. */
final class Guidance {
    private static final String CONSTANTS = "constants";

    private Guidance() {}

    /**
     * Returns the inputs of the program "guided", keyed by name, or null if the order has no guided loss.
     *
     * @param previous the device's last model (n,), or null
     * @throws CodecError if the bundle does not have this loss
     */
    static Map<String, float[]> of(Work work, Bundle bundle, float[] start, float[] previous, Examples train)
            throws CodecError {
        if (work.loss.isEmpty()) {
            return null;
        }
        Guide guide = bundle.guide;
        if (guide == null || !guide.name.equals(work.loss)) {
            String has = guide == null ? "no guided loss" : "'" + guide.name + "'";
            throw new CodecError("work.loss: '" + work.loss + "', but the bundle has " + has
                    + ": export it with this loss");
        }
        Map<String, float[]> found = new HashMap<>();
        found.put("start", start);
        found.put("previous", previous == null ? start : previous);
        found.put(CONSTANTS, constants(work, guide));
        found.put("counts", guide.counts ? counts(train.targets, (int) bundle.numClasses) : new float[0]);
        found.keySet().retainAll(guide.inputs());
        return found;
    }

    private static float[] constants(Work work, Guide guide) throws CodecError {
        byte[] packed = work.arrays.get(CONSTANTS);
        float[] found = packed == null ? new float[0] : Vectors.floats(packed);
        for (int i = 0; i < found.length; i++) {
            if (Float.isNaN(found[i]) || Float.isInfinite(found[i])) {
                String value = String.valueOf(found[i]).replace("NaN", "nan").replace("Infinity", "inf");
                throw new CodecError("work.arrays.constants[" + i + "]: " + value + ", expected a finite number");
            }
        }
        if (found.length != guide.constants) {
            throw new CodecError("work.arrays.constants: " + found.length + " numbers, expected " + guide.constants
                    + " for '" + guide.name + "'");
        }
        return found;
    }

    /** Returns the number of labels in each class. */
    private static float[] counts(Rows targets, int classes) {
        float[] counts = new float[classes];
        for (int i = 0; i < targets.size(); i++) {
            if (targets.longAt(i) >= 0) { // ignored labels do not count
                counts[(int) targets.longAt(i)]++;
            }
        }
        return counts;
    }
}
