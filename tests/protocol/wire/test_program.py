"""What a program may hold, and what is refused; tests/export shows that its programs are taken."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)

from sedge_protocol.errors import CodecError
from sedge_protocol.wire import program
from sedge_protocol.wire.operators import OPERATORS, SCAN
from sedge_protocol.wire.program import OPSET, check_program

ROOT = Path(__file__).parents[3]


def scan(*outputs: str, prefix: str = "") -> NodeProto:
    """The running sums of x, and each of them times "factor", a name of the graph around the body."""
    total, each, at, after, kept = (
        f"{prefix}{name}" for name in ("total", "each", "at", "next", "kept")
    )
    inputs = [(total, TensorProto.FLOAT), (each, TensorProto.FLOAT), (at, TensorProto.BOOL)]
    body = helper.make_graph(
        [
            helper.make_node("Add", [total, each], [after]),
            helper.make_node("Mul", [after, "factor"], [kept]),
        ],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in (after, kept)],
    )
    return helper.make_node(
        "Scan", ["factor", "x", "steps"], outputs or ["last", "sums"], body=body, num_scan_inputs=2,
        scan_input_directions=[0, 0], scan_output_directions=[0],
    )  # fmt: skip


def model() -> ModelProto:
    """y = x + ConstantOfShape([2]), with everything that the exporter writes."""
    fill = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=fill),
        helper.make_node("Add", ["x", "ones"], ["sum"], name="added"),
        helper.make_node("LeakyRelu", ["sum"], ["rectified"], alpha=0.5),
        helper.make_node("Pad", ["rectified", "none"], ["padded"]),
        helper.make_node("Transpose", ["padded"], ["y"], perm=[0]),
        scan(),
        helper.make_node("Cast", ["sum"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mod", ["whole", "divisors"], ["remainder"], fmod=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [
            numpy_helper.from_array(np.array([2]), "shape"),
            helper.make_tensor("none", TensorProto.INT64, [2], [0, 0]),
            numpy_helper.from_array(np.array(2, np.float32), "factor"),
            numpy_helper.from_array(np.zeros(2, np.bool_), "steps"),
            numpy_helper.from_array(np.array([3, -2]), "divisors"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def external(tensor: TensorProto) -> None:
    """Let a tensor be read from a file beside the program."""
    tensor.external_data.add(key="location", value="secret")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL


def only_a_location(m: ModelProto) -> None:
    m.graph.initializer[0].data_location = TensorProto.EXTERNAL


def in_a_sparse_tensor(m: ModelProto) -> None:
    external(m.graph.sparse_initializer.add().values)


def in_a_sparse_attribute(m: ModelProto) -> None:
    sparse = onnx.SparseTensorProto()
    external(sparse.values)
    m.graph.node[0].attribute.append(
        AttributeProto(name="v", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    )


def in_a_list_of_tensors(m: ModelProto) -> None:
    attribute = m.graph.node[0].attribute.add(name="v", type=AttributeProto.TENSORS)
    external(attribute.tensors.add())


def in_a_subgraph(m: ModelProto) -> None:
    branch = model().graph
    external(branch.initializer[0])
    m.graph.node.append(helper.make_node("Add", ["x", "x"], ["z"], body=branch))


def in_a_function(m: ModelProto) -> None:
    node = model().graph.node[0]
    external(node.attribute[0].t)
    made = helper.make_function("d", "F", ["x"], ["y"], [node], [helper.make_opsetid("", OPSET)])
    m.functions.append(made)


def in_training_info(m: ModelProto) -> None:
    external(m.training_info.add().algorithm.initializer.add())


def nodes(count: int) -> Callable[[ModelProto], None]:
    return lambda m: m.graph.node.extend([m.graph.node[1]] * count)


def dims(*extents: int) -> Callable[[ModelProto], None]:
    return lambda m: m.graph.initializer[0].dims.extend(extents)


def output_of(name: str, *extents: int | str | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, extents)


def output(*extents: int | str | None) -> Callable[[ModelProto], None]:
    return lambda m: m.graph.output[0].CopyFrom(output_of("y", *extents))


def metadata(m: ModelProto) -> None:
    """With ORT_LOAD_CONFIG_FROM_MODEL onnxruntime takes its options from here."""
    m.metadata_props.add(key="ort_config", value="{}")


def added(kind: str, *inputs: str, **attributes: Any) -> Callable[[ModelProto], None]:
    """One more node, with an output of its own."""
    return lambda m: m.graph.node.append(helper.make_node(kind, inputs, ["z"], **attributes))


def with_attribute(kind: str, **fields: Any) -> Callable[[ModelProto], None]:
    """One more node of x, with an attribute of these fields."""

    def change(m: ModelProto) -> None:
        added(kind, "x")(m)
        m.graph.node[-1].attribute.append(AttributeProto(**fields))

    return change


def divisors(*numbers: int) -> Callable[[ModelProto], None]:
    made = numpy_helper.from_array(np.array(numbers), "divisors")
    return lambda m: m.graph.initializer[4].CopyFrom(made)


def body(change: Callable[[GraphProto], object]) -> Callable[[ModelProto], object]:
    """A change of the Scan's body."""
    return lambda m: change(m.graph.node[5].attribute[0].g)


def steps(*extents: int) -> Callable[[ModelProto], None]:
    """How often the Scan runs; next to an extent of 0 a large one takes no memory."""
    flags = TensorProto(name="steps", data_type=TensorProto.BOOL, dims=extents)
    return lambda m: m.graph.initializer[3].CopyFrom(flags)


def counted(m: ModelProto) -> None:
    """Let a node say how often the Scan runs."""
    m.graph.node.insert(0, helper.make_node("Not", ["steps"], ["flags"]))
    m.graph.node[6].input[2] = "flags"


MAX_NODES, MAX_FIELDS = 50, 3000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits themselves take seconds to reach."""
    assert (program.MAX_NODES, program.MAX_FIELDS) == (25_000, 250_000)
    monkeypatch.setattr(program, "MAX_NODES", MAX_NODES)
    monkeypatch.setattr(program, "MAX_FIELDS", MAX_FIELDS)


NOT_ALLOWED = "is not allowed in a program"
REFUSED: dict[str, tuple[Callable[[ModelProto], object], str]] = {
    "external data": (
        lambda m: external(m.graph.initializer[0]),
        rf"model.graph.initializer\[0\]: external_data {NOT_ALLOWED}",
    ),
    "external data of an attribute": (
        lambda m: external(m.graph.node[0].attribute[0].t),
        rf"model.graph.node\[0\].attribute\[0\].t: external_data {NOT_ALLOWED}",
    ),
    "only a location": (only_a_location, f"data_location {NOT_ALLOWED}"),
    "a sparse tensor": (in_a_sparse_tensor, f"model.graph: sparse_initializer {NOT_ALLOWED}"),
    "a sparse attribute": (in_a_sparse_attribute, f"sparse_tensor {NOT_ALLOWED}"),
    "a list of tensors": (in_a_list_of_tensors, f"tensors {NOT_ALLOWED}"),
    "a subgraph": (in_a_subgraph, rf"node\[8\].attribute\[0\]: g {NOT_ALLOWED}"),
    "a function": (in_a_function, f"model: functions {NOT_ALLOWED}"),
    "training": (in_training_info, f"model: training_info {NOT_ALLOWED}"),
    "metadata": (metadata, f"model: metadata_props {NOT_ALLOWED}"),
    "an operator": (
        lambda m: m.graph.node.append(helper.make_node("RandomUniform", [], ["z"], shape=[2])),
        r"model.graph.node\[8\]: operator 'RandomUniform' is not allowed in a program",
    ),
    "another domain": (
        lambda m: setattr(m.graph.node[1], "domain", "com.microsoft"),
        "operator 'com.microsoft.Add' is not allowed",
    ),
    "another domain's opset": (
        lambda m: m.opset_import.append(helper.make_opsetid("com.microsoft", 1)),
        r"model.opset_import\[1\]: 'com.microsoft' 1, expected '' 20",
    ),
    "another opset": (
        lambda m: setattr(m.opset_import[0], "version", 19),
        r"model.opset_import\[0\]: '' 19, expected '' 20",
    ),
    "no opset": (lambda m: m.ClearField("opset_import"), "model: no opset_import"),
    "no graph": (lambda m: m.ClearField("graph"), "model: no graph"),
    "no operator": (
        lambda m: m.graph.node.add(input=["x"], output=["z"]),
        r"operator '' is not allowed",
    ),
    "nodes": (nodes(MAX_NODES), rf"node\[{MAX_NODES}\]: expected at most"),
    "fields": (
        lambda m: m.graph.node[1].input.extend([""] * MAX_FIELDS),
        f"expected at most {MAX_FIELDS} fields in all",
    ),
    "a constant": (dims(2**23), r"initializer\[0\]: expected at most 67108864 bytes of constants"),
    "a negative extent": (dims(-1), "bytes of constants"),
    "rank": (dims(*[1] * 16), r"initializer\[0\].dims\[16\]: expected at most 16 dimensions"),
    "a text constant": (
        lambda m: setattr(m.graph.initializer[0], "data_type", TensorProto.STRING),
        r"initializer\[0\]: element type 8, expected one of",
    ),
    "an output": (output(2**14, 2**15), r"output\[0\]: shape \[16384, 32768\], expected at most"),
    "an output of texts": (
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.STRING),
        r"output\[0\]: element type 8, expected one of",
    ),
    "an output's rank": (output(*[1] * 17), r"dim\[16\]: expected at most 16 dimensions"),
    "a Scan within a Scan": (
        body(lambda g: g.node.append(scan("within", "too", prefix="inner "))),
        r"node\[5\].body.node\[2\]: a Scan within a Scan is not allowed",
    ),
    "a subgraph within a Scan": (
        body(lambda g: g.node.append(helper.make_node("Add", ["at"], ["z"], body=model().graph))),
        rf"body.node\[2\].attribute\[0\]: g {NOT_ALLOWED}",
    ),
    "an operator within a Scan": (
        body(lambda g: setattr(g.node[0], "op_type", "Loop")),
        r"node\[5\].body.node\[0\]: operator 'Loop' is not allowed",
    ),
    "a Scan's external data": (
        body(lambda g: external(g.initializer.add())),
        rf"body.initializer\[0\]: external_data {NOT_ALLOWED}",
    ),
    "a Scan's open shape": (
        body(lambda g: g.input[1].CopyFrom(output_of("each", None))),
        "no dim_value",
    ),
    "many nodes in a Scan": (
        body(lambda g: g.node.extend([g.node[0]] * MAX_NODES)),
        rf"body.node\[{MAX_NODES - 8}\]: expected at most",
    ),
    "a name from nowhere": (
        body(lambda g: g.node[0].input.append("secret")),
        r"body.node\[0\]: input 'secret' is not defined",
    ),
    "a name of the graph again": (
        body(lambda g: g.node[0].output.append("ones")),
        r"body.node\[0\]: defines 'ones' again",
    ),
    "a Scan without end": (
        steps(2**60, 0),
        r"node\[5\]: 1152921504606846976 steps, expected 1 to 16384",
    ),
    "a Scan without steps": (steps(0), "0 steps, expected 1 to 16384"),
    "a Scan over numbers": (steps(), "last input of a Scan must be a constant"),
    "a Scan that a node counts": (
        counted,
        r"node\[6\]: the last input of a Scan must be a constant",
    ),
    "a Scan that an input counts": (
        lambda m: m.graph.input.append(output_of("steps", 2)),
        r"input\[1\]: defines 'steps' again",
    ),
    "a Scan of two counts": (
        lambda m: m.graph.initializer.append(m.graph.initializer[3]),
        r"initializer\[5\]: defines 'steps' again",
    ),
    "another axis of a Scan": (
        lambda m: m.graph.node[5].attribute.append(
            helper.make_attribute("scan_input_axes", [0, 1])
        ),
        "attribute 'scan_input_axes' is not allowed in a program",
    ),
    "two bodies": (
        lambda m: m.graph.node[5].attribute.append(m.graph.node[5].attribute[0]),
        r"node\[5\]: attribute 'body' appears twice",
    ),
    "a second graph of a Scan": (
        lambda m: m.graph.node[5].attribute.append(helper.make_attribute("alpha", model().graph)),
        rf"node\[5\].attribute\[4\]: g {NOT_ALLOWED}",
    ),
    "no body": (
        lambda m: m.graph.node[5].attribute.pop(0),
        "expected a body, and 1 to 3 sequences",
    ),
    "only states": (
        lambda m: setattr(m.graph.node[5].attribute[1], "i", 0),
        r"node\[5\]: attribute 'num_scan_inputs': 0, expected whole numbers from 1",
    ),
    "a body of other inputs": (body(lambda g: g.input.pop()), "body: 2 inputs, expected 3"),
    "more states and sequences than inputs": (
        lambda m: setattr(m.graph.node[5].attribute[1], "i", 4),
        "expected a body, and 1 to 3 sequences",
    ),
    "a body of another element type": (
        body(lambda g: setattr(g.input[2].type.tensor_type, "elem_type", TensorProto.INT64)),
        "body: input 'at' has element type 7, expected 9",
    ),
    "a Scan of more outputs than its body": (
        lambda m: m.graph.node[5].output.append("third"),
        r"node\[5\]: expected at most 2 outputs",
    ),
    "a name twice": (
        lambda m: m.graph.node.append(helper.make_node("Add", ["x", "x"], ["ones"])),
        r"node\[8\]: defines 'ones' again",
    ),
    "a name that comes later": (
        lambda m: m.graph.node.insert(0, helper.make_node("Add", ["x", "sum"], ["z"])),
        r"node\[0\]: input 'sum' is not defined before this node",
    ),
    "a name without text": (added("Max", "x", ""), "input '' is not defined before this node"),
    "an output without a name": (
        lambda m: m.graph.node.append(helper.make_node("Split", ["x", "none"], ["z", ""])),
        "defines an empty name",
    ),
    "an initializer without a name": (
        lambda m: m.graph.initializer[0].ClearField("name"),
        r"initializer\[0\]: defines an empty name",
    ),
    "a node without inputs": (added("Sum"), "Sum has no inputs"),
    "a division of whole numbers": (
        added("Div", "whole", "whole"),
        r"node\[8\]: Div of integers, expected a constant int64",
    ),
    "a division by a constant of zeros": (added("Div", "whole", "none"), "Div of integers"),
    "a remainder by 0": (divisors(3, 0), r"node\[7\]: Mod of integers"),
    "a remainder by -1": (divisors(-1, 3), r"node\[7\]: Mod of integers"),
    "a divisor that is not in raw_data": (
        lambda m: m.graph.initializer[4].CopyFrom(
            helper.make_tensor("divisors", TensorProto.INT64, [2], [3, -2])
        ),
        "without 0 or -1",
    ),
    "a divisor that is there twice": (
        lambda m: m.graph.initializer[4].int64_data.extend([0, 0]),
        "in raw_data, without 0 or -1",
    ),
    "a size that is computed": (
        added("Expand", "x", "whole"),
        r"node\[8\]: input 1 of Expand must be a constant",
    ),
    "an element type that programs do not have": (
        added("Cast", "x", to=TensorProto.INT32),
        r"node\[8\]: element type 6, expected one of \[1, 7, 9\]",
    ),
    "no element type": (added("Cast", "x"), "element type 0, expected one of"),
    "an attribute": (
        added("AveragePool", "x", auto_pad="SAME_UPPER"),
        "attribute 'auto_pad' is not allowed in a program",
    ),
    "an attribute twice": (
        lambda m: m.graph.node[6].attribute.append(m.graph.node[6].attribute[0]),
        r"node\[6\]: attribute 'to' appears twice",
    ),
    "a group of 0": (
        added("ConvTranspose", "x", "x", group=0),
        "attribute 'group': 0, expected whole numbers from 1 to 1048576 as i",
    ),
    "a group that is missing": (
        with_attribute("Conv", name="group", type=AttributeProto.INT),
        "attribute 'group': none",
    ),
    "a group in a list": (
        with_attribute("Conv", name="group", type=AttributeProto.INT, ints=[1]),
        "attribute 'group': 1, expected whole numbers from 1 to 1048576 as i",
    ),
    "a large window": (
        added("AveragePool", "x", kernel_shape=[1, 2**20 + 1]),
        "attribute 'kernel_shape': 1, 1048577, expected whole numbers from 1 to 1048576",
    ),
    "a negative pad": (added("MaxPool", "x", pads=[0, -1]), "'pads': 0, -1, expected"),
    "a named extent": (output("n"), f"dim_param {NOT_ALLOWED}"),
    "an open extent": (output(None), "no dim_value, expected a fixed shape"),
}


def test_what_the_exporter_writes_is_taken() -> None:
    check_program(model().SerializeToString())


@pytest.mark.parametrize(
    ("kind", "size"), [(TensorProto.FLOAT, 4), (TensorProto.INT64, 8), (TensorProto.BOOL, 1)]
)
def test_constants_take_as_much_as_their_elements(kind: int, size: int) -> None:
    most = model()
    fits = (64 * 2**20 - 50) // size  # the other constants take 50 bytes
    large = most.graph.initializer.add(name="large", data_type=kind, dims=[fits])
    check_program(most.SerializeToString())
    large.dims[0] += 1
    with pytest.raises(CodecError, match=r"initializer\[5\]: expected at most 67108864 bytes"):
        check_program(most.SerializeToString())


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    change, said = REFUSED[what]
    changed = model()
    change(changed)
    with pytest.raises(CodecError, match=said):
        check_program(changed.SerializeToString())


def test_the_bounds_of_a_scan() -> None:
    for count in (1, 2**14):
        steps(count)(fine := model())
        check_program(fine.SerializeToString())
    steps(2**14 + 1)(longer := model())
    with pytest.raises(CodecError, match="16385 steps, expected 1 to 16384"):
        check_program(longer.SerializeToString())


def test_dims_may_be_packed() -> None:
    data = model().SerializeToString()
    plain = model().graph.initializer[0].SerializeToString()
    assert plain.startswith(b"\x08\x01") and data.count(plain) == 1
    packed = b"\x0a\x01\x01" + plain[2:]

    def with_tensor(tensor: bytes) -> bytes:
        graph = model().graph
        graph.ClearField("initializer")
        del graph.node[1:]  # they need the others
        body = bytes(graph.SerializeToString()) + b"\x2a" + bytes([len(tensor)]) + tensor
        head = bytes(ModelProto(opset_import=model().opset_import).SerializeToString())
        return head + b"\x3a" + bytes([len(body) & 127 | 128, len(body) >> 7]) + body

    check_program(with_tensor(packed))
    with pytest.raises(CodecError, match=r"dims\[0\]: expected at most 16 dimensions"):
        check_program(with_tensor(b"\x0a\x11" + b"\x01" * 17 + plain[2:]))
    with pytest.raises(CodecError, match=r"dims\[0\]: not a protocol buffer"):
        check_program(with_tensor(b"\x0a\x01\x80" + plain[2:]))


def test_every_listed_operator_is_one_that_the_exporter_writes() -> None:
    folder = ROOT / "tools" / "export" / "sedge_export"
    # What apps get is no program of a device's: it may hold more.
    paths = [path for path in folder.rglob("*.py") if "apps" not in path.parts]
    text = "".join(path.read_text() for path in paths)
    named = set(re.findall(r'"([A-Z][A-Za-z]+)"', text))
    assert (
        named & {schema.name for schema in defs.get_all_schemas() if not schema.domain} == OPERATORS
    )


def test_only_one_listed_operator_has_a_subgraph() -> None:
    for name in OPERATORS - {SCAN}:
        for attribute in defs.get_schema(name, OPSET).attributes.values():
            kinds = (defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS)
            assert attribute.type not in kinds, name
