"""What a program may hold, and what is refused; tests/export shows that its programs are taken."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, TensorProto, defs, helper, numpy_helper

from sedge_protocol.errors import CodecError
from sedge_protocol.wire import program
from sedge_protocol.wire.program import OPERATORS, OPSET, check_program

ROOT = Path(__file__).parents[3]


def model() -> ModelProto:
    """y = x + ConstantOfShape([2]), with everything that the exporter writes."""
    fill = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=fill),
        helper.make_node("Add", ["x", "ones"], ["sum"], name="added"),
        helper.make_node("LeakyRelu", ["sum"], ["rectified"], alpha=0.5),
        helper.make_node("Pad", ["rectified", "none"], ["padded"], mode="constant"),
        helper.make_node("Transpose", ["padded"], ["y"], perm=[0]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [
            numpy_helper.from_array(np.array([2]), "shape"),
            helper.make_tensor("none", TensorProto.INT64, [2], [0, 0]),
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


def output(*extents: int | str | None) -> Callable[[ModelProto], None]:
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, extents)
    return lambda m: m.graph.output[0].CopyFrom(made)


def metadata(m: ModelProto) -> None:
    """With ORT_LOAD_CONFIG_FROM_MODEL onnxruntime takes its options from here."""
    m.metadata_props.add(key="ort_config", value="{}")


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
    "a subgraph": (in_a_subgraph, rf"node\[5\].attribute\[0\]: g {NOT_ALLOWED}"),
    "a function": (in_a_function, f"model: functions {NOT_ALLOWED}"),
    "training": (in_training_info, f"model: training_info {NOT_ALLOWED}"),
    "metadata": (metadata, f"model: metadata_props {NOT_ALLOWED}"),
    "an operator": (
        lambda m: m.graph.node.append(helper.make_node("RandomUniform", [], ["z"], shape=[2])),
        r"model.graph.node\[5\]: operator 'RandomUniform' is not one that programs may use",
    ),
    "another domain": (
        lambda m: setattr(m.graph.node[1], "domain", "com.microsoft"),
        "operator 'com.microsoft.Add' is not one",
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
    "no operator": (lambda m: m.graph.node.add(), r"operator '' is not one"),
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
    "an output's rank": (output(*[1] * 17), r"dim\[16\]: expected at most 16 dimensions"),
    "a named extent": (output("n"), f"dim_param {NOT_ALLOWED}"),
    "an open extent": (output(None), "found no dim_value, expected a fixed shape"),
}


def test_what_the_exporter_writes_is_taken() -> None:
    check_program(model().SerializeToString())


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    change, said = REFUSED[what]
    changed = model()
    change(changed)
    with pytest.raises(CodecError, match=said):
        check_program(changed.SerializeToString())


def test_a_field_that_may_not_repeat() -> None:
    """A parser of protobuf takes the last, or merges them."""
    data = model().SerializeToString()
    second = ModelProto(graph=model().graph).SerializeToString()
    with pytest.raises(CodecError, match="model: graph twice"):
        check_program(data + second)


def test_dims_may_be_packed() -> None:
    data = model().SerializeToString()
    plain = model().graph.initializer[0].SerializeToString()
    assert plain.startswith(b"\x08\x01") and data.count(plain) == 1
    packed = b"\x0a\x01\x01" + plain[2:]

    def with_tensor(tensor: bytes) -> bytes:
        graph = model().graph
        graph.ClearField("initializer")
        body = bytes(graph.SerializeToString()) + b"\x2a" + bytes([len(tensor)]) + tensor
        head = bytes(ModelProto(opset_import=model().opset_import).SerializeToString())
        return head + b"\x3a" + bytes([len(body) & 127 | 128, len(body) >> 7]) + body

    check_program(with_tensor(packed))
    with pytest.raises(CodecError, match=r"dims\[0\]: expected at most 16 dimensions"):
        check_program(with_tensor(b"\x0a\x11" + b"\x01" * 17 + plain[2:]))
    with pytest.raises(CodecError, match=r"dims\[0\]: not a protocol buffer"):
        check_program(with_tensor(b"\x0a\x01\x80" + plain[2:]))


def test_no_damage_is_more_than_one_clear_error() -> None:
    """What passes, onnx reads the same way, or not at all (packed numbers)."""
    data = model().SerializeToString()
    damaged = [data[:end] for end in range(len(data))]
    for at in range(len(data)):
        damaged.append(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
    refused = 0
    for sample in damaged:
        try:
            check_program(sample)
        except CodecError as exc:
            refused += 1
            assert re.match(r"model", str(exc))
            continue
        with contextlib.suppress(DecodeError):
            read = ModelProto.FromString(sample)
            assert {node.op_type for node in read.graph.node} <= OPERATORS
            assert not any(tensor.external_data for tensor in read.graph.initializer)
    assert refused > len(damaged) // 4


def test_every_listed_operator_is_one_that_the_exporter_writes() -> None:
    folder = ROOT / "tools" / "export" / "sedge_export"
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    named = set(re.findall(r'"([A-Z][A-Za-z]+)"', text))
    assert (
        named & {schema.name for schema in defs.get_all_schemas() if not schema.domain} == OPERATORS
    )


def test_no_listed_operator_has_a_subgraph() -> None:
    for name in OPERATORS:
        for attribute in defs.get_schema(name, OPSET).attributes.values():
            kinds = (defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS)
            assert attribute.type not in kinds, name
