package org.sedge.edge.wire;

import org.sedge.edge.SedgeException.CodecError;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Checks ONNX programs before a runtime reads them. A program may contain only the fields and operators listed in B13,
 * and may use them only as B16 allows.
 */
public final class OnnxProgram {
    private static final String SCAN = "Scan";
    private static final String BODY = "body";
    private static final String SEQUENCES = "num_scan_inputs";

    private static final int MAX_TEXT = 200;

    private int fields;
    private int nodes;
    private long constantBytes;

    private OnnxProgram() {}

    /** @throws CodecError if the program is not allowed */
    public static void check(byte[] program) throws CodecError {
        new OnnxProgram().model(program);
    }

    /** Returns an error with the text on one line, whatever characters the program's names contain. */
    private static CodecError refused(String text) {
        String line = text.replaceAll("[^ -~]", "?");
        return new CodecError("program: " + line.substring(0, Math.min(line.length(), MAX_TEXT)));
    }

    private static final class Field {
        int number;
        long value;
        byte[] data; // null if the value is a varint
    }

    /** A node's attribute: its fields, its integers, and the element type of its tensor, or 0 if it has none. */
    private static final class Attribute {
        String name = "";
        final Map<Integer, Field> fields = new HashMap<>();
        final List<Long> numbers = new ArrayList<>();
        long kind;
    }

    /** A node of a graph: the names of its inputs and outputs, and its attributes, keyed by name. */
    private static final class Node {
        String operator = "";
        final List<String> inputs = new ArrayList<>();
        final List<String> outputs = new ArrayList<>();
        final Map<String, Attribute> attributes = new HashMap<>();

        CodecError error(String text) {
            return refused(operator + ": " + text);
        }
    }

    private static final class Constant {
        String name = "";
        long kind;
        final List<Long> dims = new ArrayList<>();
        byte[] raw; // null unless all the elements are in this field
    }

    /** The names that a graph and its outer graphs define, with their element types, and the constants. */
    private static final class Graph {
        final Graph around;
        final Map<String, Long> kinds = new HashMap<>();
        final Map<String, Constant> constants = new HashMap<>();
        final List<Long> inputs = new ArrayList<>();
        final List<String> outputs = new ArrayList<>();

        Graph(Graph around) {
            this.around = around;
        }

        void define(String name, long kind) throws CodecError {
            if (name.isEmpty() || kinds.containsKey(name) || (around != null && around.kinds.containsKey(name))) {
                throw refused("'" + name + "' is empty or defined again");
            }
            kinds.put(name, kind);
        }

        long kind(String name) throws CodecError {
            Long kind = kinds.get(name);
            if (kind == null && around == null) {
                throw refused("input '" + name + "' is not defined before this node");
            }
            return kind == null ? around.kind(name) : kind;
        }

        Constant constant(String name) {
            return constants.containsKey(name) || around == null ? constants.get(name) : around.constant(name);
        }
    }

    private void model(byte[] data) throws CodecError {
        boolean[] seen = new boolean[9];
        for (Field field : read(OnnxTables.MODEL, data)) {
            seen[field.number] = true;
            if (field.number == 7) {
                graph(field.data, null);
            } else if (field.number == 8) {
                Map<Integer, Field> opset = only(OnnxTables.OPSET_ID, field.data);
                if (!text(opset.get(1)).isEmpty() || value(opset.get(2)) != OnnxTables.OPSET) {
                    throw refused("expected opset " + OnnxTables.OPSET + " of ONNX's own domain and no other");
                }
            }
        }
        if (!seen[7] || !seen[8]) {
            throw refused("no graph, or no opset");
        }
    }

    private Graph graph(byte[] data, Graph around) throws CodecError {
        Graph graph = new Graph(around);
        List<Node> read = new ArrayList<>();
        for (Field field : read(OnnxTables.GRAPH, data)) {
            if (field.number == 1) {
                read.add(node(field.data));
            } else if (field.number == 5) {
                Constant constant = constant(field.data);
                graph.define(constant.name, constant.kind);
                graph.constants.put(constant.name, constant);
            } else if (field.number == 11) {
                Constant declared = declared(field.data);
                graph.define(declared.name, declared.kind);
                graph.inputs.add(declared.kind);
            } else if (field.number == 12) {
                graph.outputs.add(declared(field.data).name);
            }
        }
        for (Node node : read) {
            List<Long> kinds = given(node, graph);
            List<Long> made = node.operator.equals(SCAN) ? scan(node, kinds, graph) : made(node, kinds);
            if (node.outputs.size() > made.size()) {
                throw node.error("expected at most " + made.size() + " outputs");
            }
            for (int i = 0; i < node.outputs.size(); i++) {
                graph.define(node.outputs.get(i), made.get(i));
            }
        }
        return graph;
    }

    /**
     * Returns the element types of a node's inputs.
     *
     * @throws CodecError for inputs that B16 does not allow
     */
    private static List<Long> given(Node node, Graph graph) throws CodecError {
        for (Attribute attribute : node.attributes.values()) {
            if (!OnnxTables.OTHER_ATTRIBUTES.contains(attribute.name)) {
                check(attribute, node);
            }
        }
        boolean bias = node.operator.equals("Conv") || node.operator.equals("ConvTranspose");
        int constants = OnnxTables.CONSTANT_FROM.getOrDefault(node.operator, node.inputs.size());
        List<Long> kinds = new ArrayList<>();
        for (int i = 0; i < node.inputs.size(); i++) {
            String name = node.inputs.get(i);
            if (bias && i == 2 && name.isEmpty()) {
                continue;
            }
            kinds.add(graph.kind(name));
            if (i >= constants && graph.constant(name) == null) {
                throw node.error("input " + i + " must be a constant");
            }
        }
        if (kinds.isEmpty()) {
            throw node.error("no inputs");
        }
        boolean divides = node.operator.equals("Div") || node.operator.equals("Mod");
        if (divides && !kinds.equals(Arrays.asList(OnnxTables.FLOAT, OnnxTables.FLOAT))) {
            checkDivisor(graph.constant(node.inputs.get(node.inputs.size() - 1)), node);
        }
        return kinds;
    }

    private static void check(Attribute attribute, Node node) throws CodecError {
        long[] row = OnnxTables.NUMBERS.get(attribute.name);
        Set<Integer> held = new HashSet<>(attribute.fields.keySet());
        held.removeAll(Arrays.asList(1, 20));
        boolean good = row != null && held.size() == 1 && held.contains((int) row[0]);
        for (long number : attribute.numbers) {
            good = good && number >= row[1] && number <= row[2];
        }
        if (!good) {
            throw node.error("attribute '" + attribute.name + "' is not allowed in a program, or out of range");
        }
    }

    /** Checks a divisor, because dividing by 0, or the smallest int64 by -1, crashes on some processors. */
    private static void checkDivisor(Constant by, Node node) throws CodecError {
        boolean good = by != null && by.kind == OnnxTables.INT64 && by.raw != null && by.raw.length % 8 == 0;
        if (good) {
            LongBuffer numbers = ByteBuffer.wrap(by.raw).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
            while (numbers.hasRemaining()) {
                long number = numbers.get();
                good = good && number != 0 && number != -1;
            }
        }
        if (!good) {
            throw node.error("expected a constant int64 divisor in raw_data, without 0 or -1");
        }
    }

    /** Returns the element types of a node's outputs, given those of its inputs. The node must not have a body. */
    private static List<Long> made(Node node, List<Long> kinds) throws CodecError {
        long kind = kinds.get(0);
        if (OnnxTables.BOOLEAN.contains(node.operator)) {
            kind = OnnxTables.BOOL;
        } else if (node.operator.equals("ArgMax")) {
            kind = OnnxTables.INT64;
        } else if (node.operator.equals("Cast")) {
            kind = node.attributes.containsKey("to") ? node.attributes.get("to").numbers.get(0) : 0;
        } else if (node.operator.equals("ConstantOfShape")) {
            kind = node.attributes.containsKey("value") ? node.attributes.get("value").kind : OnnxTables.FLOAT;
        } else if (node.operator.equals("Where")) {
            kind = kinds.get(kinds.size() - 1);
        }
        elementBytes(kind);
        List<Long> made = new ArrayList<>();
        for (int i = 0; i < node.outputs.size(); i++) {
            made.add(i > 0 && node.operator.equals("MaxPool") ? OnnxTables.INT64 : kind);
        }
        return made;
    }

    /** Returns the element types of the outputs of a loop, after checking that its number of steps is fixed. */
    private List<Long> scan(Node node, List<Long> kinds, Graph graph) throws CodecError {
        Constant last = graph.constant(node.inputs.get(node.inputs.size() - 1));
        long steps = last == null || last.dims.isEmpty() ? 0 : last.dims.get(0);
        if (steps < 1 || steps > OnnxTables.MAX_STEPS || graph.around != null) {
            throw node.error("the last input must be a constant of 1 to " + OnnxTables.MAX_STEPS + " steps, and loops must not be nested");
        }
        long sequences = node.attributes.containsKey(SEQUENCES) ? node.attributes.get(SEQUENCES).numbers.get(0) : 0;
        Attribute held = node.attributes.get(BODY);
        if (sequences < 1 || sequences > node.inputs.size() || held == null || !held.fields.containsKey(6)) {
            throw node.error("no body, or " + sequences + " sequences");
        }
        Graph body = graph(held.fields.get(6).data, graph);
        if (!body.inputs.equals(kinds)) {
            throw node.error("the inputs of its body do not match");
        }
        List<Long> made = new ArrayList<>();
        for (String name : body.outputs) {
            made.add(body.kind(name));
        }
        return made;
    }

    private Node node(byte[] data) throws CodecError {
        Node node = new Node();
        String domain = "";
        boolean twice = false;
        boolean misplaced = false;
        for (Field field : read(OnnxTables.NODE, data)) {
            if (field.number == 1) {
                node.inputs.add(text(field));
            } else if (field.number == 2) {
                node.outputs.add(text(field));
            } else if (field.number == 4) {
                node.operator = text(field);
            } else if (field.number == 7) {
                domain = text(field);
            } else if (field.number == 5) {
                Attribute attribute = attribute(field.data);
                twice |= node.attributes.put(attribute.name, attribute) != null;
                misplaced |= attribute.fields.containsKey(6) && !attribute.name.equals(BODY);
            }
        }
        if (++nodes > OnnxTables.MAX_NODES || !domain.isEmpty() || !OnnxTables.OPERATORS.contains(node.operator)) {
            throw refused("more than " + OnnxTables.MAX_NODES + " nodes, or operator '" + domain + "."
                    + node.operator + "', which is not allowed in a program");
        }
        boolean holds = node.attributes.containsKey(BODY) && node.attributes.get(BODY).fields.containsKey(6);
        if (twice || misplaced || (holds && !node.operator.equals(SCAN))) {
            throw node.error("an attribute is repeated or holds a graph");
        }
        return node;
    }

    private Attribute attribute(byte[] data) throws CodecError {
        Attribute attribute = new Attribute();
        for (Field field : read(OnnxTables.ATTRIBUTE, data)) {
            attribute.fields.put(field.number, field);
            if (field.number == 1) {
                attribute.name = text(field);
            } else if (field.number == 5) {
                attribute.kind = constant(field.data).kind;
            } else if (field.number == 3 || field.number == 8) {
                attribute.numbers.add(field.value);
            }
        }
        return attribute;
    }

    private Constant constant(byte[] data) throws CodecError {
        Constant constant = new Constant();
        boolean elsewhere = false;
        for (Field field : read(OnnxTables.TENSOR, data)) {
            if (field.number == 1) {
                int[] at = {0};
                while (field.data != null && at[0] < field.data.length && constant.dims.size() <= OnnxTables.MAX_RANK) {
                    constant.dims.add(varint(field.data, at));
                }
                if (field.data == null) {
                    constant.dims.add(field.value);
                }
            } else if (field.number == 2) {
                constant.kind = field.value;
            } else if (field.number == 8) {
                constant.name = text(field);
            } else if (field.number == 9) {
                constant.raw = field.data;
            } else {
                elsewhere = true;
            }
        }
        if (elsewhere) {
            constant.raw = null;
        }
        constantBytes += Math.min(elements(constant.dims) * elementBytes(constant.kind), OnnxTables.MAX_CONSTANT_BYTES + 1);
        if (constantBytes > OnnxTables.MAX_CONSTANT_BYTES) {
            throw refused("more than " + OnnxTables.MAX_CONSTANT_BYTES + " bytes of constants");
        }
        return constant;
    }

    /** Reads the name and the element type of an input or output, which must be a tensor of a fixed shape. */
    private Constant declared(byte[] data) throws CodecError {
        Map<Integer, Field> value = only(OnnxTables.VALUE, data);
        Map<Integer, Field> type = only(OnnxTables.TYPE, bytes(value.get(2)));
        Map<Integer, Field> tensor = only(OnnxTables.TENSOR_TYPE, bytes(type.get(1)));
        elementBytes(value(tensor.get(1)));
        List<Long> dims = new ArrayList<>();
        for (Field field : read(OnnxTables.SHAPE, bytes(tensor.get(2)))) {
            Field extent = only(OnnxTables.DIMENSION, field.data).get(1);
            if (extent == null) {
                throw refused("an input or output without a fixed shape");
            }
            dims.add(extent.value);
        }
        if (elements(dims) > OnnxTables.MAX_ELEMENTS) {
            throw refused("an input or output of more than " + OnnxTables.MAX_ELEMENTS + " elements");
        }
        Constant declared = new Constant();
        declared.name = text(value.get(1));
        declared.kind = value(tensor.get(1));
        return declared;
    }

    /** Returns the product of unsigned extents. If it overflows, the result is above every limit. */
    private static long elements(List<Long> dims) throws CodecError {
        if (dims.size() > OnnxTables.MAX_RANK) {
            throw refused("more than " + OnnxTables.MAX_RANK + " dimensions");
        }
        double product = dims.contains(0L) ? 0 : 1;
        for (long extent : dims) {
            product *= extent < 0 ? 0x1p64 : extent;
        }
        return (long) Math.min(product, 0x1p40);
    }

    private static long elementBytes(long kind) throws CodecError {
        if (kind != 1 && kind != 7 && kind != 9) {
            throw refused("element type " + kind + ", expected float32, int64 or bool");
        }
        return kind == 1 ? 4 : kind == 7 ? 8 : 1;
    }

    /**
     * Reads the fields of a message. Returns them keyed by field number.
     *
     * @param allowed the permitted fields, each of which may occur once
     */
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
            if (++fields > OnnxTables.MAX_FIELDS || !fits
                    || (!seen.add(field.number) && !entry.endsWith("*") && !entry.endsWith("+"))) {
                throw refused("field " + field.number + " is not allowed there, or one too many");
            }
            if (wire == 0) {
                field.value = varint(data, at);
            } else {
                long length = wire == 5 ? 4 : varint(data, at);
                if (length < 0 || length > data.length - at[0]) {
                    throw refused("cut off");
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
        throw refused("expected a varint of at most 64 bits");
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
