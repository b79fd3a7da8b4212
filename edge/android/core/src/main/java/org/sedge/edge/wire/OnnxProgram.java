package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Which ONNX programs a device lets a runtime read: the fields and operators of B13, and no others. */
public final class OnnxProgram {
    private static final Set<String> OPERATORS = new HashSet<>(Arrays.asList((
            "Abs Add And ArgMax AveragePool BatchNormalization Cast Ceil Concat ConstantOfShape Conv ConvTranspose Cos "
            + "CumSum Div Elu Equal Erf Exp Expand Floor Gather GatherElements Gelu Gemm Greater GreaterOrEqual "
            + "Identity LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool MaxUnpool Min Mod Mul Neg Not Or "
            + "Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round ScatterElements "
            + "ScatterND Sigmoid Sign Sin Slice Softmax Split Sqrt Sub Sum Tanh Tile Transpose Where").split(" ")));
    private static final int OPSET = 20;
    private static final int MAX_NODES = 25_000;
    private static final int MAX_FIELDS = 250_000;
    private static final long MAX_CONSTANT_BYTES = 64 << 20;
    private static final long MAX_ELEMENTS = 1 << 28;
    private static final int MAX_RANK = 16;

    // Each field that a message may have: its number, then v for a varint, s for bytes, f for a fixed 32; a * may repeat,
    // and a + may repeat or be packed.
    private static final Map<Integer, String> MODEL = message("1v 2s 3s 7s 8s*");
    private static final Map<Integer, String> OPSET_ID = message("1s 2v");
    private static final Map<Integer, String> GRAPH = message("1s* 2s 5s* 11s* 12s*");
    private static final Map<Integer, String> NODE = message("1s* 2s* 3s 4s 5s* 7s");
    private static final Map<Integer, String> ATTRIBUTE = message("1s 2f 3v 4s 5s 7f+ 8v+ 20v");
    private static final Map<Integer, String> TENSOR = message("1v+ 2v 4s 5s 7s 8s 9s");
    private static final Map<Integer, String> VALUE = message("1s 2s");
    private static final Map<Integer, String> TYPE = message("1s");
    private static final Map<Integer, String> TENSOR_TYPE = message("1v 2s");
    private static final Map<Integer, String> SHAPE = message("1s*");
    private static final Map<Integer, String> DIMENSION = message("1v");

    private int fields;
    private int nodes;
    private long constantBytes;

    private OnnxProgram() {}

    private static Map<Integer, String> message(String fields) {
        Map<Integer, String> found = new HashMap<>();
        for (String field : fields.split(" ")) {
            int digits = field.split("[vsf]")[0].length();
            found.put(Integer.valueOf(field.substring(0, digits)), field.substring(digits));
        }
        return found;
    }

    /** Throws {@code CodecError} for a program that no runtime should see. */
    public static void check(byte[] program) throws CodecError {
        new OnnxProgram().model(program);
    }

    private static final class Field {
        int number;
        long value;
        byte[] data; // null: a varint
    }

    private void model(byte[] data) throws CodecError {
        boolean[] seen = new boolean[9];
        for (Field field : read(MODEL, data)) {
            seen[field.number] = true;
            if (field.number == 7) {
                graph(field.data);
            } else if (field.number == 8) {
                Map<Integer, Field> opset = only(OPSET_ID, field.data);
                if (!text(opset.get(1)).isEmpty() || value(opset.get(2)) != OPSET) {
                    throw new CodecError("program: expected opset " + OPSET + " of ONNX's own domain and no other");
                }
            }
        }
        if (!seen[7] || !seen[8]) {
            throw new CodecError("program: no graph, or no opset");
        }
    }

    private void graph(byte[] data) throws CodecError {
        for (Field field : read(GRAPH, data)) {
            if (field.number == 1) {
                node(field.data);
            } else if (field.number == 5) {
                constant(field.data);
            } else if (field.number != 2) {
                declared(field.data);
            }
        }
    }

    private void node(byte[] data) throws CodecError {
        String operator = "";
        String domain = "";
        for (Field field : read(NODE, data)) {
            if (field.number == 4) {
                operator = text(field);
            } else if (field.number == 7) {
                domain = text(field);
            } else if (field.number == 5) {
                for (Field part : read(ATTRIBUTE, field.data)) {
                    if (part.number == 5) {
                        constant(part.data);
                    }
                }
            }
        }
        if (++nodes > MAX_NODES || !domain.isEmpty() || !OPERATORS.contains(operator)) {
            throw new CodecError("program: more than " + MAX_NODES + " nodes, or operator '" + domain + "." + operator
                    + "', which programs may not use");
        }
    }

    private void constant(byte[] data) throws CodecError {
        List<Long> dims = new ArrayList<>();
        long kind = 0;
        for (Field field : read(TENSOR, data)) {
            if (field.number == 1) {
                int[] at = {0};
                while (field.data != null && at[0] < field.data.length && dims.size() <= MAX_RANK) {
                    dims.add(varint(field.data, at));
                }
                if (field.data == null) {
                    dims.add(field.value);
                }
            } else if (field.number == 2) {
                kind = field.value;
            }
        }
        constantBytes += Math.min(elements(dims) * elementBytes(kind), MAX_CONSTANT_BYTES + 1);
        if (constantBytes > MAX_CONSTANT_BYTES) {
            throw new CodecError("program: more than " + MAX_CONSTANT_BYTES + " bytes of constants");
        }
    }

    /** An input or output: a tensor of a fixed shape. */
    private void declared(byte[] data) throws CodecError {
        Map<Integer, Field> type = only(TYPE, bytes(only(VALUE, data).get(2)));
        Map<Integer, Field> tensor = only(TENSOR_TYPE, bytes(type.get(1)));
        elementBytes(value(tensor.get(1)));
        List<Long> dims = new ArrayList<>();
        for (Field field : read(SHAPE, bytes(tensor.get(2)))) {
            Field extent = only(DIMENSION, field.data).get(1);
            if (extent == null) {
                throw new CodecError("program: an input or output without a fixed shape");
            }
            dims.add(extent.value);
        }
        if (elements(dims) > MAX_ELEMENTS) {
            throw new CodecError("program: an input or output of more than " + MAX_ELEMENTS + " elements");
        }
    }

    /** The product of extents, which are unsigned; more than all limits where it does not fit. */
    private static long elements(List<Long> dims) throws CodecError {
        if (dims.size() > MAX_RANK) {
            throw new CodecError("program: more than " + MAX_RANK + " dimensions");
        }
        double product = dims.contains(0L) ? 0 : 1;
        for (long extent : dims) {
            product *= extent < 0 ? 0x1p64 : extent;
        }
        return (long) Math.min(product, 0x1p40);
    }

    private static long elementBytes(long kind) throws CodecError {
        if (kind != 1 && kind != 7 && kind != 9) {
            throw new CodecError("program: element type " + kind + ", expected float32, int64 or bool");
        }
        return kind == 1 ? 4 : kind == 7 ? 8 : 1;
    }

    /** The fields of a message in which none may repeat, by number. */
    private Map<Integer, Field> only(Map<Integer, String> allowed, byte[] data) throws CodecError {
        Map<Integer, Field> found = new HashMap<>();
        for (Field field : read(allowed, data)) {
            found.put(field.number, field);
        }
        return found;
    }

    private List<Field> read(Map<Integer, String> allowed, byte[] data) throws CodecError {
        List<Field> found = new ArrayList<>();
        Set<Integer> seen = new HashSet<>();
        int[] at = {0};
        while (at[0] < data.length) {
            long tag = varint(data, at);
            Field field = new Field();
            field.number = (int) Math.min(tag >>> 3, 1 << 20);
            int wire = (int) tag & 7;
            String entry = allowed.getOrDefault(field.number, " ");
            boolean packed = entry.endsWith("+") && wire == 2;
            boolean fits = packed || entry.charAt(0) == (wire == 0 ? 'v' : wire == 2 ? 's' : wire == 5 ? 'f' : '?');
            if (++fields > MAX_FIELDS || !fits
                    || (!seen.add(field.number) && !entry.endsWith("*") && !entry.endsWith("+"))) {
                throw new CodecError("program: field " + field.number + " is not allowed there, or one too many");
            }
            if (wire == 0) {
                field.value = varint(data, at);
            } else {
                long length = wire == 5 ? 4 : varint(data, at);
                if (length < 0 || length > data.length - at[0]) {
                    throw new CodecError("program: cut off");
                }
                field.data = Arrays.copyOfRange(data, at[0], at[0] + (int) length);
                at[0] += (int) length;
            }
            found.add(field);
        }
        return found;
    }

    private static long varint(byte[] data, int[] at) throws CodecError {
        long value = 0;
        for (int i = 0; i < 10 && at[0] < data.length; i++) {
            int b = data[at[0]++];
            value |= (b & 0x7fL) << 7 * i;
            if (b >= 0) {
                if (i == 9 && b > 1) {
                    break;
                }
                return value;
            }
        }
        throw new CodecError("program: no varint of at most 64 bits");
    }

    private static String text(Field field) {
        return field == null ? "" : new String(field.data, StandardCharsets.ISO_8859_1);
    }

    private static long value(Field field) {
        return field == null ? 0 : field.value;
    }

    private static byte[] bytes(Field field) {
        return field == null ? new byte[0] : field.data;
    }
}
