package org.sedge.executorch;

import org.pytorch.executorch.EValue;
import org.pytorch.executorch.Module;
import org.sedge.edge.backends.Backend;
import org.sedge.edge.backends.BackendException;
import org.sedge.edge.backends.Program;
import org.sedge.edge.backends.Tensor;

import java.io.File;
import java.nio.ByteBuffer;
import java.util.Arrays;

/** Runs the programs of .pte files in ExecuTorch's AAR, {@code org.pytorch:executorch-android}. */
public final class AndroidExecutorch implements Backend {
    private static final int ONE_THREAD = 1;

    @Override
    public String name() {
        return "executorch";
    }

    @Override
    public Program load(File file, String method) throws BackendException {
        try {
            return new Method(Module.load(file.getPath(), Module.LOAD_MODE_FILE, ONE_THREAD), method);
        } catch (RuntimeException | LinkageError error) {
            throw new BackendException("executorch: " + file.getName() + ": " + error.getMessage(), error);
        }
    }

    private static final class Method implements Program {
        private final Module module;
        private final String name;

        Method(Module module, String name) {
            this.module = module;
            this.name = name;
        }

        @Override
        public Tensor[] run(Tensor... inputs) throws BackendException {
            EValue[] given = new EValue[inputs.length];
            for (int i = 0; i < inputs.length; i++) {
                given[i] = EValue.from(wrapped(inputs[i]));
            }
            try {
                EValue[] made = module.execute(name, given);
                Tensor[] outputs = new Tensor[made.length];
                for (int i = 0; i < made.length; i++) {
                    outputs[i] = copied(made[i].toTensor());
                }
                return outputs;
            } catch (RuntimeException error) {
                throw new BackendException("executorch: method " + name + ": " + error.getMessage(), error);
            }
        }

        @Override
        public void close() {
            module.destroy();
        }
    }

    /**
     * Wraps our tensor as one of the AAR's tensors, sharing its memory. This is possible because phones are
     * little-endian, like our tensors.
     */
    private static org.pytorch.executorch.Tensor wrapped(Tensor tensor) throws BackendException {
        ByteBuffer data = tensor.data();
        long[] shape = tensor.shape();
        switch (tensor.type()) {
            case FLOAT32:
                return org.pytorch.executorch.Tensor.fromBlob(data.asFloatBuffer(), shape);
            case INT64:
                return org.pytorch.executorch.Tensor.fromBlob(data.asLongBuffer(), shape);
            case INT32:
                return org.pytorch.executorch.Tensor.fromBlob(data.asIntBuffer(), shape);
            case UINT8:
                return org.pytorch.executorch.Tensor.fromBlobUnsigned(data, shape);
            default:
                throw new BackendException(
                        "executorch: found an input of " + tensor.type() + " " + Arrays.toString(shape)
                                + ", expected FLOAT32, INT64, INT32 or UINT8");
        }
    }

    /**
     * Copies an output, because the runtime writes the next run's outputs into the same memory. All outputs are float32
     * (bundle.md).
     */
    private static Tensor copied(org.pytorch.executorch.Tensor made) {
        Tensor copy = Tensor.zeros(Tensor.Type.FLOAT32, made.shape());
        copy.data().asFloatBuffer().put(made.getDataAsFloatArray());
        return copy;
    }
}
