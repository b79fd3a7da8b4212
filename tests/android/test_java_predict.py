"""The model of a phone and the Python agent's: the same outputs to the last byte, of the same ``.pte``."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import parser
from tests.android import class_means
from tests.android.classes import java
from tests.android.kinds import exported
from tests.edge.home import put_models
from torch import Tensor, nn

from sedge_edge import Model
from sedge_export import export
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.errors import DataError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.model_files import read_tensors, write_model
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle, Program, load, pack, save
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import Codec

B = 4
EXECUTORCH = "org.sedge.executorch.JvmExecutorch"
Inputs = Mapping[str, NDArray[Any]]


class TwoInputs(nn.Module):
    """Numbers and a word, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(5, 4), nn.Linear(7, 3)

    def forward(self, numbers: Tensor, word: Tensor) -> Tensor:
        return self.last(torch.cat([numbers, self.words(word)], 1))  # type: ignore[no-any-return]


class Phone:
    """A device's folder in Java and one in Python, with the same bundle, blobs and models."""

    def __init__(self, bundle: Path, folder: Path, library: Path | None, class_path: str) -> None:
        self.bundle, self.init = load(bundle)
        self.folder, self.library, self.class_path = folder, library, class_path
        self.java = folder / "java"
        self.blobs = BlobFolder(self.java, 0)
        self.name = self.blobs.write(pack(self.bundle))

    def keep(
        self, run: str, base: Theta | None, model: Theta | None, start: Theta | None = None
    ) -> str:
        """The words that give the phone a run with these vectors; without a base it is lost."""
        first = bytes(32) if base is None else self.blobs.write(base.tobytes())
        own = ("-" if v is None else self.blobs.write(v.tobytes()).hex() for v in (model, start))
        return f"runs {run} {self.name.hex()} {first.hex()} {' '.join(own)}"

    def ask(self, *questions: str, run: str = "-", backend: str = EXECUTORCH) -> list[str]:
        main = "org.sedge.edge.backends.AskModel"
        words: Sequence[str | Path] = [self.java, run, backend, *questions]
        return java(self.class_path, main, *words, library=self.library)

    def inputs(self, inputs: Inputs, name: str = "inputs") -> Path:
        np.savez(self.folder / f"{name}.npz", **inputs)  # type: ignore[arg-type]
        return self.folder / f"{name}.npz"

    def python(self, theta: Theta, backend: str = "executorch") -> Model:
        """The Python agent's, with theta (n,)."""
        home = self.folder / "python" / "edge.toml"
        put_models(home, pack(self.bundle), {"run": theta})
        return Model(home.parent / "state", backend=backend)


def rows(count: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).normal(size=(count, *shape)).astype(np.float32)


@pytest.fixture
def classifier(tmp_path: Path, library: Path, class_path: str) -> Phone:
    """A phone for models of rows (6,), with names for their classes."""
    return Phone(exported("dropout"), tmp_path, library, class_path)


def test_a_phone_predicts_what_the_python_agent_predicts(classifier: Phone) -> None:
    """With the newest model, whole batches and a part of one; a model of several runs by name."""
    x, theta = rows(11, 6), classifier.init
    given = classifier.inputs({"x": x})
    outs = [classifier.folder / f"out-{i}" for i in range(5)]
    *said, classes = classifier.ask(
        classifier.keep("first", theta, None), "open", f"predict {given} {outs[0]}",
        classifier.keep("first", theta, None, 4 * theta), f"predict {given} {outs[4]}",
        classifier.keep("first", theta, 2 * theta), f"predict {given} {outs[1]}",
        classifier.keep("second", None, 3 * theta), f"predict {given} {outs[2]}",
        classifier.keep("third", theta, None), f"predict {given} {outs[3]}", f"classify {given}",
    )  # fmt: skip
    assert said == ["(3,) false", "(3,) false", *["(3,) true"] * 3]
    for out, factor in zip(outs, (1, 2, 3, 3, 4), strict=True):
        expected = classifier.python(np.float32(factor) * theta).predict(x)
        assert out.read_bytes() == expected.tobytes()
    wanted = classifier.python(3 * theta).classify(x)
    found, labels, likely = re.fullmatch(r"(\[.*?\]) (\[.*?\]) (\[.*\])", classes).groups()  # type: ignore[union-attr]
    assert json.loads(found) == wanted.classes.tolist() and labels == "[ant, bee, cat]"
    np.testing.assert_allclose(json.loads(likely), wanted.probabilities.ravel(), atol=1e-6)


def test_what_it_cannot_read_or_take_is_said_in_the_same_words(classifier: Phone) -> None:
    x, theta = rows(2, 6), classifier.init
    bad: list[Inputs] = [
        {"x": x[:, :5]},
        {"x": x[:0]},
        {"x": np.full((2, 6), np.nan, np.float32)},
        {"x": np.full((2, 6), 2**24 + 1)},
        {"a": x, "b": x},
    ]
    files = [classifier.inputs(one, f"bad-{i}") for i, one in enumerate(bad)]
    model, refused = classifier.python(theta), list[str]()
    for one in bad:
        with pytest.raises(DataError) as error:
            model.predict(one.get("x", one))
        refused.append(str(error.value))
    none = classifier.folder / "none"
    good, lost = classifier.inputs({"x": x}), hashlib.sha256((7 * theta).tobytes()).hexdigest()
    said = classifier.ask(
        "open", classifier.keep("old", None, None), "open", classifier.keep("run", theta, theta), "open",
        *(f"predict {file} {none}" for file in files),
        f"runs run {classifier.name.hex()} {lost} {lost} -", f"predict {good} {none}", "open",
    )  # fmt: skip
    assert said[0].endswith("expected an agent's folder, with its journal")
    assert said[1].endswith(
        "run: found 'newest', expected a run with a model, but none has arrived"
    )
    assert said[2:-2] == refused
    assert said[-2] == "(3,) true"  # the old one serves
    assert lost in said[-1]
    (other,) = classifier.ask("open", run="none")[:1]
    assert other.endswith("run: found 'none', expected one of: run")


def test_a_device_that_has_not_trained_predicts_with_what_it_would_start_from(
    classifier: Phone,
) -> None:
    """An order whose blobs are here, with its patch; nothing is written into the agent's blobs."""
    theta, every = classifier.init, np.arange(classifier.init.size, dtype=np.uint32)
    coded = encode(SparseVector(theta.size, every, theta), ValueCoding.FP32, Compression.ZLIB)
    patch = SparseVector(theta.size, every[:3], np.array([1, 2, 3], np.float32))
    change = encode(patch, ValueCoding.FP32, Compression.NONE)
    order = Order(
        run="run", round=1, task="train", bundle=describe(pack(classifier.bundle)), model=describe(coded),
        model_hash=hashlib.sha256(theta.tobytes()).digest(),
        codec=Codec(ValueCoding.BF16, fraction=0.3, compression=Compression.NONE),
        patch=change, patch_hash=hashlib.sha256(change).digest(),
    )  # fmt: skip
    (classifier.folder / "order").write_bytes(msgspec.msgpack.encode(order))
    classifier.blobs.write(coded)
    x, out = rows(3, 6), classifier.folder / "out"
    before = sorted(classifier.java.rglob("blobs/*"))
    commit = f"order {classifier.folder / 'order'}"
    said = classifier.ask(commit, "open", f"predict {classifier.inputs({'x': x})} {out}")
    assert said == ["(3,) false"]
    assert sorted(classifier.java.rglob("blobs/*")) == before
    start = theta.copy()
    start[:3] = 1, 2, 3
    assert out.read_bytes() == classifier.python(start).predict(x).tobytes()


def test_several_inputs_by_name_and_outputs_of_any_shape(
    tmp_path: Path, library: Path, class_path: str
) -> None:
    torch.manual_seed(1)
    sample = {"numbers": torch.randn(B, 3), "word": torch.zeros(B, dtype=torch.int64)}
    export(
        TwoInputs(), sample, batch_size=B, name="two", num_classes=3,
        folder=tmp_path / "bundle", backends=("executorch",),
    )  # fmt: skip
    word = np.array([0, 4, 2, 1, 3])
    cases: list[tuple[Path, Inputs, str]] = [
        (tmp_path / "bundle", {"word": word.astype(np.float32), "numbers": rows(5, 3)}, "(3,)"),
        (exported("tokens"), {"x": np.resize(word, (9, 3))}, "(3, 5)"),
    ]
    for bundle, inputs, shape in cases:
        folder = tmp_path / f"phone-{bundle.name}"
        folder.mkdir()
        phone = Phone(bundle, folder, library, class_path)
        given, out = phone.inputs(inputs), phone.folder / "out"
        wrong = phone.inputs({"word": np.full(2, 0.5), "numbers": rows(2, 3)}, "wrong")
        words = phone.keep("run", None, phone.init)
        asked = f"predict {given} {out}", f"predict {wrong} {out}.none", f"classify {given}"
        said = phone.ask(words, "open", *(asked if "x" in inputs else asked[:2]))
        model = phone.python(phone.init)
        assert said[0] == f"{shape} true"
        assert out.read_bytes() == model.predict(inputs.get("x", inputs)).tobytes()
        with pytest.raises(DataError) as error, np.load(wrong) as arrays:
            model.predict(dict(arrays))
        assert said[1] == str(error.value)
        if "x" in inputs:  # the classes of a row are its last axis
            classes = model.classify(inputs["x"]).classes
            assert classes.shape == (9, 3)
            assert said[2].startswith(f"{classes.ravel().tolist()} []")


def test_onnx_runtimes_calls_predict_and_a_model_becomes_files_as_in_python(
    class_path: str, tmp_path: Path
) -> None:
    """The AAR's calls, on stand-ins for its classes; for whole numbers every sum is exact."""
    (bundle, _), f, c = class_means.bundle(), class_means.F, class_means.C
    text = f"{class_means.HEAD} p (float[{class_means.N}] theta, float[{class_means.B}, {f}] x) => "
    text += f"(float[{class_means.B}, {c}] logits) <int64[2] shape = {{{c}, {f}}}, int64[1] last = {{1}}>"
    nodes = f"means = Reshape (theta, shape) {class_means.NEARNESS} logits = Identity (nearness)"
    data = bytes(parser.parse_model(f"{text} {{ {nodes} }}").SerializeToString())
    program = Program("predict", ONNXRUNTIME, "predict", hashlib.sha256(data).hexdigest())
    manifest = bundle.manifest
    labels = ('ä \\ "', *map(str, range(1, c)))
    programs = (*manifest.programs, program)
    manifest = msgspec.structs.replace(manifest, programs=programs, labels=labels)
    theta = np.random.default_rng(0).integers(0, 15, class_means.N).astype(np.float32)
    save(tmp_path / "bundle", Bundle(manifest, {**bundle.files, "predict": data}), theta)
    phone = Phone(tmp_path / "bundle", tmp_path, None, class_path)
    x, out = class_means.examples(11, 1)[0], tmp_path / "out"
    files = [tmp_path / f"model.{ending}" for ending in ("npz", "onnx", "pt")]
    said = phone.ask(
        phone.keep("run", None, theta), "open", f"predict {phone.inputs({'x': x})} {out}",
        *(f"export {file}" for file in files), backend="org.sedge.onnxruntime.OnnxRuntime",
    )  # fmt: skip
    assert said[0] == f"({c},) true"
    assert said[1:] == [f"file: found '{files[2]}', expected a name that ends in .npz or .onnx"]
    write_model(phone.bundle, theta, tmp_path / "python.onnx")
    assert files[1].read_bytes() == (tmp_path / "python.onnx").read_bytes()
    tensors, expected = read_tensors(files[0]), phone.bundle.views(theta)
    assert tensors.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(tensors[name], values)
    assert out.read_bytes() == phone.python(theta, "onnxruntime").predict(x).tobytes()
