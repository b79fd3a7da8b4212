"""ONNX programs: what is refused, and what they cannot do to a device."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, StringStringEntryProto, TensorProto, helper, numpy_helper
from tests.edge.backends.softmax import DIVIDING, FILES, F, N, bundle

from sedge_edge.backends import BACKENDS, NO_CODE, open_trainer
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.bundle import ONNXRUNTIME, pack


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"gradient": b""}, "cannot be loaded"),
        ({"gradient": b"not onnx"}, "cannot be loaded"),
        ({"gradient": FILES["gradient"][:-100]}, "cannot be loaded"),
        (
            {"gradient": FILES["predict"]},
            "it has inputs theta, x and outputs logits, expected theta, x, y, w",
        ),
    ],
)
def test_a_bad_train_program_is_refused_at_once(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(CodecError, match=f"bundle 'softmax'.*{message}"):
        BACKENDS[ONNXRUNTIME].open(bundle(files), ONNXRUNTIME, 1, NO_CODE)


def reading(file: str) -> bytes:
    """The gradient program, its last constant read from a file in the working directory."""
    model = ModelProto.FromString(FILES["gradient"])
    model.graph.initializer.append(
        TensorProto(
            name="secret",
            dims=[4],
            data_type=TensorProto.FLOAT,
            data_location=TensorProto.EXTERNAL,
            external_data=[StringStringEntryProto(key="location", value=file)],
        )
    )
    return bytes(model.SerializeToString())


def test_a_program_cannot_read_the_devices_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime would take it: it looks for such a file in the working directory."""
    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    said = r"program 'gradient' cannot be loaded: model.graph.initializer\[\d\]: external_data"
    with pytest.raises(CodecError, match=said):
        BACKENDS[ONNXRUNTIME].open(bundle({"gradient": reading("secret")}), ONNXRUNTIME, 1, NO_CODE)


def test_a_program_that_would_end_the_process() -> None:
    """Named before anything trains, although only who predicts would have met it."""
    said = r"bundle 'softmax': program 'predict': model.graph.node\[6\]: Div of integers"
    with pytest.raises(CodecError, match=said):
        open_trainer(bundle({**FILES, "predict": DIVIDING}), ONNXRUNTIME, 1)


def test_no_hostile_program_that_is_taken_ends_its_process() -> None:
    """A short run of it; a long one without the check shows what that is good for."""
    words = [sys.executable, "-m", "tests.edge.backends.hostile", "--count", "100", "--seed", "5"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert re.search(r"100 programs, [3-9]\d taken, 0 ended their process, \d+ slow\n$", said)


def test_bytes_of_another_format_are_not_taken_for_it() -> None:
    """ONNX with the mark of onnxruntime's own format, which it would believe."""
    name = ModelProto(producer_name="  ORTM").SerializeToString()
    assert name[4:8] == b"ORTM"
    files = {"gradient": name + FILES["gradient"]}
    BACKENDS[ONNXRUNTIME].open(bundle(files), ONNXRUNTIME, 1, NO_CODE)


# Predicts with a packed bundle on a machine that has as many pages of memory as its first argument says.
SMALL_MACHINE = """
import os, pathlib, sys
import numpy as np
real = os.sysconf
os.sysconf = lambda name: int(sys.argv[1]) if name == "SC_PHYS_PAGES" else real(name)
from sedge_edge.backends import open_trainer
from sedge_protocol.wire.bundle import unpack
trainer = open_trainer(unpack(pathlib.Path(sys.argv[2]).read_bytes()), "auto", 1)
theta, rows = np.zeros(int(sys.argv[3]), np.float32), np.zeros((1, int(sys.argv[4])), np.float32)
try:
    print(trainer.predictor(theta)(rows))
except Exception as exc:
    print(type(exc).__name__, exc)
"""


def test_a_program_cannot_take_the_devices_memory(tmp_path: Path) -> None:
    """400 MB, of an operator that may be used, on a device of 256: refused, where it would be killed."""
    model = ModelProto.FromString(FILES["predict"])
    model.graph.initializer.append(numpy_helper.from_array(np.full(2, 10_000), "huge"))
    model.graph.node[-1].output[0] = "small"
    filled = helper.make_node("ConstantOfShape", ["huge"], ["filled"])
    total = helper.make_node("ReduceSum", ["filled"], ["total"], keepdims=0)
    model.graph.node.extend(
        [filled, total, helper.make_node("Add", ["small", "total"], ["logits"])]
    )
    packed = tmp_path / "bundle"
    packed.write_bytes(pack(bundle({**FILES, "predict": model.SerializeToString()})))
    pages = 256 * 10**6 // os.sysconf("SC_PAGE_SIZE")
    words = [sys.executable, "-c", SMALL_MACHINE, str(pages), str(packed), str(N), str(F)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert said.startswith("CodecError bundle 'softmax': program 'predict' failed: ")
    assert "Available memory" in said
