package org.sedge.edge.backends;

import org.sedge.edge.Examples;
import org.sedge.edge.Rows;
import org.sedge.edge.SedgeException;
import org.sedge.edge.SedgeException.CodecError;
import org.sedge.edge.host.Disk;
import org.sedge.edge.training.Batches;
import org.sedge.edge.wire.Bundle;
import org.sedge.edge.wire.Signature;

import java.io.File;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * Runs a bundle's programs on sample inputs. It does so in the separate process of a trial, so that a crash does not
 * affect the agent.
 */
public final class Tryout {
    /** The programs, in the order in which they are tried. */
    public static final List<String> PROGRAMS =
            Collections.unmodifiableList(Arrays.asList("gradient", "guided", "evaluate", "predict"));
    /** The number of samples: zeros, ordinary numbers, and NaN as in a model that has diverged. */
    public static final int SAMPLES = 3;
    /** The name of the file with the packed bundle. */
    static final String BUNDLE = "bundle";

    private final File folder;
    private final Bundle bundle;
    private final Backend backend;
    private final Map<String, Program> loaded = new HashMap<>();

    /**
     * Opens the bundle in a folder.
     *
     * @param backendClass the name of a class that implements {@link Backend}
     * @throws SedgeException if the bundle cannot be read, or the class cannot be used
     */
    public Tryout(File folder, String backendClass) throws SedgeException {
        this.folder = folder;
        bundle = Bundle.unpack(Disk.read(new File(folder, BUNDLE)));
        backend = Backend.of(backendClass);
    }

    /**
     * Runs a program on a sample. An error that the runtime reports is not a crash, so it is ignored here: the training
     * process will get the same error.
     *
     * @return true if any program has been loaded so far
     * @throws SedgeException if the program's file cannot be written
     */
    public boolean run(String name, int sample) throws SedgeException {
        byte[] data = bundle.program(name, backend.name());
        try {
            if (data != null && !loaded.containsKey(name)) {
                loaded.put(name, Programs.load(Programs.file(folder, data), bundle, backend, name, data));
            }
            if (data != null) {
                loaded.get(name).run(inputs(name, sample));
            }
        } catch (CodecError | BackendException | RuntimeException | Error error) {
            return !loaded.isEmpty();
        }
        return !loaded.isEmpty();
    }

    /**
     * Returns a program's inputs. Integers are 0 in every sample, because a runtime may rely on them being valid
     * indices.
     */
    private Tensor[] inputs(String name, int sample) throws SedgeException {
        Random random = new Random(0);
        Rows targets = bundle.target == null ? null : rows(bundle.target, 0, random);
        Examples examples = new Examples(rows(bundle.input, sample, random), targets);
        float[] theta = numbers(bundle.layout.size, sample, random);
        Buffers buffers = new Buffers(bundle);
        buffers.put(theta);
        buffers.fill(examples, Batches.inOrder(bundle.batchSize, bundle.batchSize).get(0));
        buffers.draw(0, 0);
        if (name.equals("guided")) {
            Map<String, float[]> guidance = new HashMap<>();
            guidance.put("constants", new float[bundle.guide.constants]);
            guidance.put("counts", new float[(int) bundle.numClasses]);
            for (String model : bundle.guide.models) {
                guidance.put(model, theta);
            }
            buffers.put(guidance);
            return buffers.inputs(Signature.guided(false, bundle.noise > 0, bundle.guide));
        }
        return buffers.inputs(name.equals("gradient") ? Signature.gradient(false, bundle.noise > 0)
                : name.equals("evaluate") ? Signature.EVALUATE : Signature.PREDICT);
    }

    private Rows rows(Bundle.Row row, int sample, Random random) throws SedgeException {
        int count = bundle.batchSize;
        for (long extent : row.shape) {
            count = Math.multiplyExact(count, (int) extent);
        }
        return row.dtype.equals("float32") ? new Rows(numbers(count, sample, random), row.shape)
                : new Rows(new long[count], row.shape);
    }

    private static float[] numbers(int count, int sample, Random random) {
        float[] numbers = new float[count];
        for (int i = 0; i < count && sample > 0; i++) {
            numbers[i] = sample == 1 ? (float) random.nextGaussian() : Float.NaN;
        }
        return numbers;
    }
}
