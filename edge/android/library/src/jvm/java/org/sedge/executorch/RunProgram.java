package org.sedge.executorch;

import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.backends.Tensor;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;

/**
 * Runs a method of a .pte file: {@code jvm|android FILE METHOD STEPS OUT TYPE:EXTENTS:FILE…}. Writes the first step's
 * outputs to OUT, one after another, and prints the nanoseconds per step, or prints an error. Fails if later steps
 * change the first outputs.
 */
public final class RunProgram {
    private RunProgram() {}

    public static void main(String[] words) throws IOException {
        try (FileOutputStream out = new FileOutputStream(words[4])) {
            Backend backend = words[0].equals("jvm") ? new JvmExecutorch() : new AndroidExecutorch();
            Tensor[] inputs = new Tensor[words.length - 5];
            for (int i = 0; i < inputs.length; i++) {
                inputs[i] = tensor(words[i + 5]);
            }
            try (Program program = backend.load(new File(words[1]), words[2])) {
                Tensor[] first = program.run(inputs);
                int steps = Integer.parseInt(words[3]);
                long begin = System.nanoTime();
                for (int i = 0; i < steps; i++) {
                    inputs[0].data().putFloat(0, i);
                    program.run(inputs);
                }
                System.out.println((System.nanoTime() - begin) / steps);
                for (Tensor output : first) {
                    out.getChannel().write(output.data());
                }
            }
        } catch (BackendException error) {
            System.out.println(error.getMessage());
        }
    }

    private static Tensor tensor(String word) throws IOException {
        String[] part = word.split(":", 3);
        String[] extents = part[1].isEmpty() ? new String[0] : part[1].split(",");
        long[] shape = new long[extents.length];
        for (int i = 0; i < shape.length; i++) {
            shape[i] = Long.parseLong(extents[i]);
        }
        byte[] bytes = Files.readAllBytes(new File(part[2]).toPath());
        ByteBuffer data = ByteBuffer.allocateDirect(bytes.length);
        data.put(bytes).flip();
        return new Tensor(Tensor.Type.valueOf(part[0]), shape, data);
    }
}
