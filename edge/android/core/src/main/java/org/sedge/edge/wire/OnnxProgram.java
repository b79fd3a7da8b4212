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
            + "Pad Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Scan "
            + "ScatterElements ScatterND Sigmoid Sign Sin Slice Softmax Split Sqrt Sub Sum Tanh Tile Transpose Where").split(" ")));
    private static final String SCAN = "Scan";
    private static final String BODY = "body";
    private static final Set<String> SCAN_ATTRIBUTES = new HashSet<>(Arrays.asList(
            BODY, "num_scan_inputs", "scan_input_directions", "scan_output_directions"));
    private static final int OPSET = 20;
    private static final int MAX_NODES = 25_000;
    private static final int MAX_FIELDS = 250_000;
    private static final long MAX_CONSTANT_BYTES = 64 << 20;
    private static final long MAX_ELEMENTS = 1 << 28;
    private static final int MAX_RANK = 16;
    private static final int MAX_STEPS = 1 << 14;

    // Each field that a message may have: its number, then v for a varint, s for bytes, f for a fixed 32; a * may repeat,
    // and a + may repeat or be packed.
    private static final Map<Integer, String> MODEL = message("1v 2s 3s 7s 8s*");
    private static final Map<Integer, String> OPSET_ID = message("1s 2v");
    private static final Map<Integer, String> GRAPH = message("1s* 2s 5s* 11s* 12s*");
    private static final Map<Integer, String> NODE = message("1s* 2s* 3s 4s 5s* 7s");
    private static final Map<Integer, String> ATTRIBUTE = message("1s 2f 3v 4s 5s 6s 7f+ 8v+ 20v");
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

    /** A node, its names and the fields of its attributes. */
    private static final class Node {
        String operator = "";
        final List<String> inputs = new ArrayList<>();
        final List<String> outputs = new ArrayList<>();
        final List<Map<Integer, Field>> attributes = new ArrayList<>();
    }

    /** What a graph names: how often each name is defined, its inputs, and the extents of its constants. */
    private static final class Graph {
        final Map<String, Integer> names = new HashMap<>();
        final List<String> inputs = new ArrayList<>();
        final Map<String, List<Long>> constants = new HashMap<>();
        final List<Node> nodes = new ArrayList<>();

        void define(String name) {
            if (!name.isEmpty()) {
                names.put(name, names.getOrDefault(name, 0) + 1);
            }
        }

        /** How often a Scan runs: what a constant says, or 0. */
        long steps(Node scan) {
            String last = scan.inputs.isEmpty() ? "" : scan.inputs.get(scan.inputs.size() - 1);
            List<Long> extents = constants.getOrDefault(last, new ArrayList<>());
            return last.isEmpty() || extents.isEmpty() || names.get(last) != 1 ? 0 : extents.get(0);
        }
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
        Graph graph = named(data);
        for (Node node : graph.nodes) {
            if (node.operator.equals(SCAN)) {
                scan(node, graph);
            }
        }
    }

    /** A graph, without the bodies of its nodes. */
    private Graph named(byte[] data) throws CodecError {
        Graph graph = new Graph();
        for (Field field : read(GRAPH, data)) {
            if (field.number == 1) {
                Node node = node(field.data);
                graph.nodes.add(node);
                for (String name : node.outputs) {
                    graph.define(name);
                }
            } else if (field.number == 5) {
                constant(field.data, graph);
            } else if (field.number != 2) {
                String name = declared(field.data);
                if (field.number == 11) {
                    graph.inputs.add(name);
                    graph.define(name);
                }
            }
        }
        return graph;
    }

    /** A loop over a known number of steps, whose body uses names of its own and of the graph. */
    private void scan(Node node, Graph graph) throws CodecError {
        Map<String, Map<Integer, Field>> held = new HashMap<>();
        for (Map<Integer, Field> attribute : node.attributes) {
            String label = text(attribute.get(1));
            boolean misplaced = attribute.containsKey(6) && !label.equals(BODY);
            if (!SCAN_ATTRIBUTES.contains(label) || held.put(label, attribute) != null || misplaced) {
                throw new CodecError("program: attribute '" + label + "' is not one of a Scan, there twice, or holds a graph");
            }
        }
        long steps = graph.steps(node);
        if (steps < 1 || steps > MAX_STEPS) {
            throw new CodecError("program: the last input of a Scan must be a constant of 1 to " + MAX_STEPS + " steps");
        }
        long sequences = held.containsKey("num_scan_inputs") ? value(held.get("num_scan_inputs").get(3)) : 0;
        if (sequences < 1 || sequences > node.inputs.size() || !held.containsKey(BODY)) {
            throw new CodecError("program: a Scan without body, or of " + sequences + " sequences");
        }
        body(named(bytes(held.get(BODY).get(6))), node, graph);
    }

    private static void body(Graph body, Node node, Graph graph) throws CodecError {
        if (body.inputs.size() != node.inputs.size()) {
            throw new CodecError("program: the body of a Scan has " + body.inputs.size() + " inputs");
        }
        for (Node inner : body.nodes) {
            if (inner.operator.equals(SCAN)) {
                throw new CodecError("program: a Scan within a Scan is not allowed");
            }
            for (String name : inner.inputs) {
                if (!name.isEmpty() && !body.names.containsKey(name) && !graph.names.containsKey(name)) {
                    throw new CodecError("program: input '" + name + "' of a Scan's body is defined nowhere");
                }
            }
        }
        for (Map.Entry<String, Integer> name : body.names.entrySet()) {
            if (graph.names.containsKey(name.getKey()) || name.getValue() != 1) {
                throw new CodecError("program: the body of a Scan defines '" + name.getKey() + "' again");
            }
        }
    }

    private Node node(byte[] data) throws CodecError {
        Node node = new Node();
        String domain = "";
        boolean holds = false;
        for (Field field : read(NODE, data)) {
            if (field.number == 1) {
                node.inputs.add(text(field));
            } else if (field.number == 2) {
                node.outputs.add(text(field));
            } else if (field.number == 4) {
                node.operator = text(field);
            } else if (field.number == 7) {
                domain = text(field);
            } else if (field.number == 5) {
                Map<Integer, Field> attribute = only(ATTRIBUTE, field.data);
                node.attributes.add(attribute);
                holds |= attribute.containsKey(6);
                if (attribute.containsKey(5)) {
                    constant(attribute.get(5).data, new Graph());
                }
            }
        }
        if (++nodes > MAX_NODES || !domain.isEmpty() || !OPERATORS.contains(node.operator)) {
            throw new CodecError("program: more than " + MAX_NODES + " nodes, or operator '" + domain + "."
                    + node.operator + "', which programs may not use");
        }
        if (holds && !node.operator.equals(SCAN)) {
            throw new CodecError("program: a graph within a " + node.operator + " is not allowed");
        }
        return node;
    }

    /** Enters a tensor into the constants of a graph. */
    private void constant(byte[] data, Graph graph) throws CodecError {
        List<Long> dims = new ArrayList<>();
        String name = "";
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
            } else if (field.number == 8) {
                name = text(field);
            }
        }
        graph.constants.put(name, dims);
        graph.define(name);
        constantBytes += Math.min(elements(dims) * elementBytes(kind), MAX_CONSTANT_BYTES + 1);
        if (constantBytes > MAX_CONSTANT_BYTES) {
            throw new CodecError("program: more than " + MAX_CONSTANT_BYTES + " bytes of constants");
        }
    }

    /** The name of an input or output: a tensor of a fixed shape. */
    private String declared(byte[] data) throws CodecError {
        Map<Integer, Field> value = only(VALUE, data);
        Map<Integer, Field> type = only(TYPE, bytes(value.get(2)));
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
        return text(value.get(1));
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
