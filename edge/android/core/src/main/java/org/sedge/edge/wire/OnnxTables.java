// Written by `make spec` from the Python code: changes here are lost.
package org.sedge.edge.wire;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** The permitted parts of ONNX programs (spec/bundle.md, B13 to B16), for {@link OnnxProgram}. */
final class OnnxTables {
    static final int OPSET = 20;
    static final int MAX_NODES = 25000;
    static final int MAX_FIELDS = 250000;
    static final long MAX_CONSTANT_BYTES = 67108864;
    static final long MAX_ELEMENTS = 268435456;
    static final int MAX_RANK = 16;
    static final int MAX_STEPS = 16384;
    static final long FLOAT = 1;
    static final long INT64 = 7;
    static final long BOOL = 9;

    static final Set<String> OPERATORS = words(
            "Abs Add And ArgMax AveragePool BatchNormalization Cast Ceil Concat ConstantOfShape Conv "
            + "ConvTranspose Cos CumSum Div Elu Equal Erf Exp Expand Floor Gather GatherElements Gelu Gemm Greater "
            + "GreaterOrEqual Identity LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Min Mod Mul Neg "
            + "Not Or Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Scan "
            + "ScatterElements ScatterND Sigmoid Sign Sin Slice Softmax Split Sqrt Sub Sum Tanh Tile Transpose "
            + "Where");
    static final Set<String> OTHER_ATTRIBUTES = words("alpha approximate body epsilon reduction value");
    /** The operators whose outputs are bool. */
    static final Set<String> BOOLEAN = words("And Equal Greater GreaterOrEqual Less LessOrEqual Not Or");
    /** An attribute's field number, and its smallest and largest value. */
    static final Map<String, long[]> NUMBERS = new HashMap<>();
    /** The index of the first input of an operator that must be an initializer. */
    static final Map<String, Integer> CONSTANT_FROM = new HashMap<>();

    // Each field that a message may have: its number, then v for a varint, s for bytes, f for a fixed 32.
    // A field with * may repeat, one with + may repeat or be packed.
    static final Map<Integer, String> MODEL = message("1v 2s 3s 7s 8s*");
    static final Map<Integer, String> OPSET_ID = message("1s 2v");
    static final Map<Integer, String> GRAPH = message("1s* 2s 5s* 11s* 12s*");
    static final Map<Integer, String> NODE = message("1s* 2s* 3s 4s 5s* 7s");
    static final Map<Integer, String> ATTRIBUTE = message("1s 2f 3v 4s 5s 6s 7f+ 8v* 20v");
    static final Map<Integer, String> TENSOR = message("1v+ 2v 4s 5s 7s 8s 9s");
    static final Map<Integer, String> VALUE = message("1s 2s");
    static final Map<Integer, String> TYPE = message("1s");
    static final Map<Integer, String> TENSOR_TYPE = message("1v 2s");
    static final Map<Integer, String> SHAPE = message("1s*");
    static final Map<Integer, String> DIMENSION = message("1v");

    static {
        numbers("axis", 3, -16, 15);
        numbers("ceil_mode count_include_pad fmod keepdims transA transB", 3, 0, 1);
        numbers("dilations kernel_shape strides", 8, 1, 1048576);
        numbers("group num_scan_inputs", 3, 1, 1048576);
        numbers("output_padding pads", 8, 0, 1048576);
        numbers("perm", 8, 0, 15);
        numbers("scan_input_directions scan_output_directions", 8, 0, 1);
        numbers("to", 3, 1, 9);
        constants("ConstantOfShape Range", 0);
        constants("CumSum Expand Pad ReduceMax ReduceMean ReduceMin ReduceSum Reshape Slice Split Tile", 1);
    }

    private OnnxTables() {}

    private static Set<String> words(String text) {
        return new HashSet<>(Arrays.asList(text.split(" ")));
    }

    private static void numbers(String names, long field, long low, long high) {
        for (String name : names.split(" ")) {
            NUMBERS.put(name, new long[] {field, low, high});
        }
    }

    private static void constants(String operators, int from) {
        for (String operator : operators.split(" ")) {
            CONSTANT_FROM.put(operator, from);
        }
    }

    private static Map<Integer, String> message(String fields) {
        Map<Integer, String> held = new HashMap<>();
        for (String field : fields.split(" ")) {
            int digits = field.split("[vsf]")[0].length();
            held.put(Integer.valueOf(field.substring(0, digits)), field.substring(digits));
        }
        return held;
    }
}
