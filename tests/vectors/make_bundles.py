"""What spec.json has of bundles and programs: bytes to accept or to refuse."""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
from onnx import ModelProto, NodeProto, TensorProto, helper
from tests.protocol.wire.test_program import REFUSED, model, steps
from tests.vectors.make_rounds import Events

from sedge_protocol.wire.protobuf import field
from sedge_protocol.wire.transfer import describe


def bundles() -> Events:
    program = b"\x08\x0a"
    layout = {
        "tensors": [
            {"name": "w", "shape": [2, 3], "offset": 0},
            {"name": "b", "shape": [], "offset": 6},
        ]
    }
    manifest: dict[str, Any] = {
        "format": 1, "name": "tiny", "layout": layout, "batch_size": 4,
        "input": {"dtype": "float32", "shape": [3]}, "target": {"dtype": "int64", "shape": []},
        "num_classes": 2, "uses_batch_statistics": False,
        "programs": [{
            "name": "gradient", "backend": "other", "file": "train.bin",
            "sha256": hashlib.sha256(program).hexdigest(),
        }],
        "verification": {"step_error": 0.0, "epoch_error": 0.0, "tolerance": 1.0, "versions": {}},
    }  # fmt: skip

    def written(text: str, files: dict[str, Any]) -> bytes:
        return zlib.compress(msgspec.msgpack.encode({"manifest": text.encode(), "files": files}), 9)

    def packed(manifest: dict[str, Any], files: dict[str, Any] | None = None) -> bytes:
        return written(json.dumps(manifest), {"train.bin": program} if files is None else files)

    def twice(batch_size: str) -> bytes:
        text = json.dumps(manifest).replace(
            '"batch_size": ', f'"batch_size": {batch_size}, "batch_size": '
        )
        return written(text, {"train.bin": program})

    def large(shape: list[int], elements: int) -> dict[str, Any]:
        first, second = layout["tensors"]
        rows = {**first, "shape": shape}, {**second, "offset": elements}
        return {**manifest, "layout": {"tensors": list(rows)}}

    def named(file: str) -> bytes:
        return packed({**manifest, "programs": [{**entry, "file": file}]}, {file: program})

    def tensor(**other: object) -> dict[str, Any]:
        first = {**layout["tensors"][0], **other}
        return {**manifest, "layout": {"tensors": [first, layout["tensors"][1]]}}

    def frozen(blob: bytes = bytes(44), name: str = "base", **other: object) -> dict[str, Any]:
        held = {"tensors": [{"name": name, "shape": [3], "offset": 0}]}
        described = {**msgspec.to_builtins(describe(blob, 4096)), **other}
        return {**manifest, "frozen": {"layout": held, "blob": described}}

    entry = manifest["programs"][0]
    good = packed(manifest)
    guide = {"name": "moon", "models": ["start", "previous"], "constants": 2}
    guided = [{**entry, "name": "guided"}]
    cases: list[tuple[str, bytes, bool]] = [
        ("as it should be", good, True),
        ("a key that is not known (B5)", packed({**manifest, "later": 1}), True),
        ("a byte behind the stream (B1)", good + b"\0", False),
        ("cut off (B1)", good[:-1], False),
        ("not compressed (B1)", zlib.decompress(good), False),
        ("another format (B5)", packed({**manifest, "format": 2}), False),
        ("a file that is missing (B2)", packed(manifest, {}), False),
        ("a file of another hash (B3)", packed(manifest, {"train.bin": b"\x08\x0b"}), False),
        *((f"a name that is {file!r} (B2)", named(file), False) for file in ("../x", ".", "..", "")),
        ("a file that no program names (B2)", packed(manifest, {"train.bin": program, "/": b""}), True),
        ("a file that is a text (B5)", packed(manifest, {"train.bin": program, "x": "text"}), False),
        ("a hash in upper case (B3)", packed(
            {**manifest, "programs": [{**entry, "sha256": entry["sha256"].upper()}]}), False),
        ("a key twice: the last counts (B5)", twice("0"), True),
        ("no JSON: 04 (B2)", twice("04"), False),
        ("no layout's tensors (B5)", packed({**manifest, "layout": {"tensors": []}}), False),
        ("a tensor of 32 extents (B6)", packed(tensor(shape=[2, 3, *[1] * 30])), True),
        ("a tensor of 33 extents (B6)", packed(tensor(shape=[2, 3, *[1] * 31])), False),
        ("a tensor without a name (B6)", packed(tensor(name="")), False),
        ("2^28 elements and one (B6)", packed(large([2**28], 2**28)), False),
        ("2^64 elements and one (B6)", packed(large([2**28, 2**28, 2**8], 0)), False),
        ("an offset that leaves a gap (B6)", packed(tensor(offset=1)), False),
        ("an empty extent (B6)", packed(tensor(shape=[2, 0])), False),
        ("an empty extent, the offsets right (B6)", packed({**manifest, "layout": {"tensors": [
            {**layout["tensors"][0], "shape": [2, 0]}, {**layout["tensors"][1], "offset": 0}]}}), False),
        ("another role (B7)", packed(tensor(role="buffer")), False),
        ("a program of another name (B5)", packed(
            {**manifest, "programs": [{**entry, "name": "train"}]}), False),
        ("a guided loss (X28)", packed({**manifest, "guide": guide, "programs": guided}), True),
        ("a guided program without a guide (B5)", packed({**manifest, "programs": guided}), False),
        ("a guide of a model that is not known (B5)", packed(
            {**manifest, "guide": {**guide, "models": ["last"]}}), False),
        ("a name that repeats (B6)", packed(tensor(name="b")), False),
        *((f"an input {where} (B5)", packed({**manifest, "input": {**manifest["input"], **row}}), fine)
          for where, row, fine in (
              ("of another type", {"dtype": "float64"}, False),
              ("with an empty extent", {"shape": [0]}, False),
              ("of 32 extents", {"shape": [1] * 32}, True),
              ("of 33 extents", {"shape": [1] * 33}, False),
          )),
        ("fewer classes than none (B5)", packed({**manifest, "num_classes": -1}), False),
        ("fewer tokens than none (B5)", packed({**manifest, "vocabulary": -1}), False),
        ("tokens, and a label for each of 2 x 2 pixels", packed({
            **manifest, "vocabulary": 9, "target": {"dtype": "int64", "shape": [2, 2]}}), True),
        ("a share of channels that lacks, 0.0 (B5)", packed({**manifest, "dropped": 0.0}), True),
        *((f"{key} {value} (B5)", packed({**manifest, key: value}), fine)
          for key, value, fine in (
              ("batch_size", 0, False), ("batch_size", 65536, True), ("batch_size", 65537, False),
              ("batch_size", 4.0, False), ("format", 1.0, False), ("noise", -1, False),
              ("noise", 2**28, True), ("noise", 2**28 + 1, False), ("num_classes", 2**50, True),
              ("num_classes", 2**50 + 1, False), ("uses_batch_statistics", 0, False),
              ("metric", {"better": "lower"}, False),
          )),
        *((f"{key} {value} of a program (B5)", packed(
            {**manifest, "programs": [{**entry, key: value}]}), False)
          for key, value in (("memory_bytes", -1), ("multiply_adds", 1.5))),
        ("8193 constants of a guide", packed({**manifest, "guide": {**guide, "constants": 8193}}), False),
        ("a name of 256 code points, 512 bytes (B6)", packed(tensor(name="ä" * 256)), True),
        ("a name of 257 code points (B6)", packed(tensor(name="n" * 257)), False),
        ("the defaults, written out (B5)", packed(
            {**tensor(role="parameter"), "axes": None, "dropped": 0}), True),
        ("frozen data (X14)", packed(frozen()), True),
        ("frozen data of more than 4 bytes a value and 32 (X14)", packed(frozen(bytes(45))), False),
        ("a frozen tensor that is in theta (X14)", packed(frozen(name="b")), False),
        ("frozen data with a digest too many (X14)",
         packed(frozen(digests=base64.b64encode(bytes(32)).decode())), False),
        ("frozen data whose digests are no base64 (X14)", packed(frozen(digests="?" * 24)), False),
        ("a model whose input is its target", packed({**manifest, "target": None}), True),
        ("a loss and a metric (B5)", packed(
            {**manifest, "loss": {"name": "huber"}, "metric": {"name": "rmse", "better": "lower"}}
        ), True),
        ("a loss of the default's name (B5)", packed({**manifest, "loss": {"label_smoothing": 0.1}}), True),
        ("a metric that is neither", packed({**manifest, "metric": {"name": "m", "better": "no"}}), False),
        *((f"no {key} (B5)", packed({k: v for k, v in manifest.items() if k != key}), False)
          for key in manifest),
    ]  # fmt: skip
    return [{"rule": rule, "blob": blob.hex(), "accepted": fine} for rule, blob, fine in cases]


def programs() -> Events:
    """Programs but for those that break a limit of size, which are long."""
    fine, empty = model(), model()
    empty.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 0
    found = [("as it should be", fine, True), ("an output without elements", empty, True)]
    for rule, (change, _) in REFUSED.items():
        if rule not in ("nodes", "fields", "many nodes in a Scan"):
            change(changed := model())
            found.append((rule, changed, False))
    for rule, domain, version in (
        ("a later opset", "", 21),
        ("another domain's, 20", "ai.onnx.ml", 20),
    ):
        (changed := model()).opset_import.add(domain=domain, version=version)
        found.append((rule, changed, False))
    for count, accepted in ((16384, True), (16385, False)):
        steps(count)(changed := model())
        found.append((f"a Scan of {count} steps", changed, accepted))
    found += [*_small_programs()]
    made = [(rule, one.SerializeToString(deterministic=True), fine) for rule, one, fine in found]
    small, most = made[-1][1], b"\xff" * 9
    for rule, more, accepted in (
        ("a varint of 64 bits", b"\x08" + most + b"\1", True),
        ("a varint of 65 bits", b"\x08" + most + b"\2", False),
        ("a text of 2^64 - 1 bytes", b"\x12" + most + b"\1", False),
    ):
        made.append((rule, more + small, accepted))
    perm = field(1, b"perm") + field(20, 7)
    for rule, numbers, accepted in (
        ("numbers one by one", field(8, 0), True),
        ("numbers that are packed", field(8, b"\0"), False),
    ):
        node = field(1, b"x") + field(2, b"z") + field(4, b"Transpose") + field(5, perm + numbers)
        (rest := model()).ClearField("graph")
        graph = model().graph.SerializeToString(deterministic=True) + field(1, node)
        made.append((rule, rest.SerializeToString(deterministic=True) + field(7, graph), accepted))
    one = _small([helper.make_node("Div", ["x", "x"], ["z"])], [2])
    tensor = field(1, b"\1") + field(2, 7) + field(8, b"m") + field(9, bytes(8))
    graph = one.graph.SerializeToString(deterministic=True) + field(5, tensor)
    one.ClearField("graph")
    made.append(("extents that are packed", one.SerializeToString() + field(7, graph), True))
    made.append(("a graph twice", made[0][1] + field(7, b""), False))
    made.append(("cut off", made[0][1][:-1], False))
    made.append(("cut off in a text", made[0][1] + field(3, b"later")[:-1], False))
    return [{"rule": rule, "program": data.hex(), "accepted": fine} for rule, data, fine in made]


def _small_programs() -> Iterator[tuple[str, ModelProto, bool]]:
    """Programs of a few nodes: the element types of outputs, and limits that are just kept."""
    node = helper.make_node
    equal, index = node("Equal", ["x", "x"], ["e"]), node("ArgMax", ["x"], ["i"])
    pool = node("MaxPool", ["x"], ["p", "i"], kernel_shape=[1])

    def divides(by: str, of: str = "x") -> NodeProto:
        return node("Div", [of, by], ["z"])

    for rule, nodes, accepted in (
        ("floats are divided", [divides("x")], True),
        (
            "by Where",
            [equal, node("Where", ["e", "x", "x"], ["f"]), divides("f")],
            True,
        ),
        ("by ConstantOfShape", [node("ConstantOfShape", ["n"], ["f"]), divides("f")], True),
        ("by MaxPool's values", [pool, divides("p")], True),
        ("by MaxPool's indices", [pool, divides("i", "i")], False),
        ("by ArgMax", [index, divides("i", "i")], False),
        ("floats by whole numbers", [index, divides("i")], False),
        ("by Equal", [equal, divides("e", "e")], False),
        ("a Conv without its third input", [node("Conv", ["x", "x", ""], ["z"])], True),
        ("a Max without its third input", [node("Max", ["x", "x", ""], ["z"])], False),
        ("a later input that is computed", [index, node("Slice", ["x", "n", "i"], ["z"])], False),
        ("an axis below 0", [node("Softmax", ["x"], ["z"], axis=-1)], True),
    ):
        yield rule, _small(nodes, [2]), accepted
    for rule, shape in (
        ("16 dimensions", [1] * 16), ("2^28 elements", [2**28]), ("no element, 0 times many", [0, 2**29]),
    ):  # fmt: skip
        yield rule, _small([divides("x")], shape), True


def _small(nodes: list[NodeProto], shape: list[int]) -> ModelProto:
    x, z = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", [2]), ("z", shape))
    )
    whole = helper.make_tensor("n", TensorProto.INT64, [1], b"\2" + bytes(7), raw=True)
    graph = helper.make_graph(nodes, "", [x], [z], [whole])
    return ModelProto(opset_import=[helper.make_opsetid("", 20)], graph=graph)
