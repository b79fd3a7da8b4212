"""An input's value inside a program."""

import numpy as np
import onnx
import pytest
from tests.edge.home import make_bundle

from sedge_protocol.errors import CodecError
from sedge_protocol.host.onnx_runtime import library
from sedge_protocol.layout import Theta
from sedge_protocol.wire.binding import bound
from sedge_protocol.wire.bundle import ONNXRUNTIME, unpack


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Theta]:
    """A packed bundle and its first theta (n,)."""
    return make_bundle(tmp_path_factory.mktemp("tiny"))


def test_the_program_computes_what_it_was_given(tiny: tuple[bytes, Theta]) -> None:
    blob, theta = tiny
    program = unpack(blob).program("predict", ONNXRUNTIME)
    made = bound(program, "theta", 2 * theta)
    onnx.checker.check_model(onnx.load_from_string(made), full_check=True)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    feed: dict[str, object] = {"theta": 2 * theta, "x": x}
    expected = library().InferenceSession(program).run(None, feed)
    session = library().InferenceSession(made)
    assert [one.name for one in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(session.run(None, {"x": x}), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("program", "name", "said"),
    [
        (b"", "theta", "program: inputs , expected one named theta"),
        (None, "thetas", "program: inputs theta, x, expected one named thetas"),
        (b"\x0b", "theta", "byte 1: wire type 3"),
    ],
)
def test_a_program_without_the_input(
    tiny: tuple[bytes, Theta], program: bytes | None, name: str, said: str
) -> None:
    data = unpack(tiny[0]).program("predict", ONNXRUNTIME) if program is None else program
    with pytest.raises(CodecError, match=said):
        bound(data, name, tiny[1])
