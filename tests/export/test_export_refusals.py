"""What cannot become a program is refused at export, in one message that says what and where."""

import random
import re
import time
import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from torch import Tensor, nn
from torch._ops import OpOverload

from sedge_export import export
from sedge_export.lowering.onnx.graph import FLOAT, INT, Graph, Value
from sedge_export.lowering.onnx.table import LOWERINGS, Lowered, Lowering
from sedge_protocol.errors import ExportError

torch.set_num_threads(1)

aten = torch.ops.aten


class Model(nn.Module):
    """A linear classifier of five numbers around some other function."""

    def __init__(self, function: Callable[[Tensor], Any], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner or nn.Identity()
        self.function = function
        self.classifier = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        return self.classifier(self.function(self.inner(x)))


class Phase(nn.Module):
    """An operator without a lowering, in a module of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.atan2(x, torch.ones_like(x))


class Counting(nn.Module):
    """A module that counts how often it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counter: Tensor
        self.register_buffer("counter", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.counter += 1
        return x


class SimpleOutput(dict[str, object]):
    """As transformers' ModelOutput: a dict whose values are attributes, too."""

    @property
    def logits(self) -> object:
        return self["logits"]


class Named(nn.Module):
    """Gives its outputs, and other tensors, by their names."""

    def __init__(self, kind: type[dict[str, object]]) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> object:
        """A dict; with ``logits`` only where they are an attribute."""
        outputs = self.layer(x)
        names = ("loss", "logits") if self.kind is SimpleOutput else ("loss",)
        return self.kind({"cache": None, **dict.fromkeys(names, outputs)})


def plain_dict() -> nn.Module:
    return Named(dict[str, object])


def simple_output() -> nn.Module:
    return Named(SimpleOutput)


class Shift(nn.Module):
    """Adds a constant of a type that programs do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift).float()


fft: Any = torch.fft
sympy: Any = import_module("sympy")  # it has no types
GENERATOR = default_rng(0)


class Hidden(nn.Module):
    """A function of the module itself and its input."""

    def __init__(self, function: Callable[["Hidden", Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.count = 0
        self.kept: Tensor | None = None
        self.rng = default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def hiding(function: Callable[[Hidden, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Model(lambda x: x, nn.Sequential(nn.Identity(), Hidden(function)))


def dropped(draw: Callable[[Hidden], float]) -> Callable[[], nn.Module]:
    """Layer drop so rare that no run shows it."""
    return hiding(lambda m, x: -x if draw(m) < 1e-9 else x)


def inverted(_m: nn.Module, x: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.inv(torch.eye(5) * x.var())
    return x @ inverse


def counting(module: Hidden, x: Tensor) -> Tensor:
    """Something else, every thousandth time."""
    module.count += 1
    return -x if module.count % 1000 == 0 else x


def remembering(module: Hidden, x: Tensor) -> Tensor:
    """The mean of the first batch, for ever."""
    if module.kept is None:
        module.kept = x.mean()
    return x - module.kept


def cached(module: Hidden, x: Tensor) -> Tensor:
    """A constant that is made when it is first needed, and the last input, which is never read."""
    if module.kept is None:
        module.kept = torch.arange(5) / 5
    module.last = x
    # As libraries draw names, and the order in which they try what they know of a symbol.
    assert uuid.uuid4() and sympy.Symbol(f"s{module.training}").is_zero is None
    return x * module.kept


class Augmented(Model):
    """numpy's random numbers and a config that can do without, as transformers' speech models have."""

    def __init__(self) -> None:
        super().__init__(lambda x: x * float(np.random.rand()))
        self.config = SimpleNamespace(apply_spec_augment=True)


def adding(module: Hidden, x: Tensor) -> Tensor:
    """A parameter of its own making."""
    module.scale = nn.Parameter(torch.ones(5))
    return x * module.scale


def fails(module: Hidden, x: Tensor) -> Tensor:
    """An error of two lines."""
    raise KeyError("first\nsecond")


def chosen(_m: nn.Module, x: Tensor) -> Tensor:
    """As many numbers as the sample, by chance, has negative ones."""
    x = x.clone()
    x[x < 0] = torch.arange(8.0)
    return x


def branching(x: Tensor) -> Tensor:
    """A path that depends on the values of x."""
    return x if x.sum() > 0 else -x


SAMPLE = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def attempt(model: nn.Module, folder: Path, **changes: Any) -> str:
    """The message of the refusal; nothing may have been written."""
    options: dict[str, Any] = {"batch_size": 4, "name": "m", "num_classes": 3} | changes
    sample = options.pop("sample", SAMPLE)
    with pytest.raises(ExportError) as caught:
        export(model, sample, folder=folder / "bundle", **options)
    assert not (folder / "bundle").exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


def mean_loss(logits: Tensor, y: Tensor) -> Tensor:
    """One number for all rows."""
    return logits.mean()


def attention_to_nothing(module: Hidden, x: Tensor) -> Tensor:
    """Scores of which some rows have every key masked, where a softmax is NaN."""
    scores = x.masked_fill(x < x.mean(), -torch.inf)
    scores[0] = -torch.inf
    return scores.softmax(1)


def permuted(module: Hidden, x: Tensor) -> Tensor:
    """Columns in a random order."""
    return x[:, torch.randperm(5)] if module.training else x


def moved(_module: Hidden, x: Tensor) -> Tensor:
    """On another device."""
    return x.to("cuda")


def generated(module: Hidden, x: Tensor) -> Tensor:
    """Random numbers of a generator that is made for them."""
    return torch.rand(5, generator=torch.Generator()) * x if module.training else x


def differentiated(module: Hidden, x: Tensor) -> Tensor:
    """A gradient in the forward pass."""
    (slope,) = torch.autograd.grad(x.sum(), x)
    return slope


def detached(logits: Tensor, y: Tensor) -> Tensor:
    losses: Tensor = logits.detach().sum(1)
    return losses


def bessel(logits: Tensor, y: Tensor) -> Tensor:
    """An operator without a lowering."""
    losses: Tensor = torch.special.i0(logits).sum(1)
    return losses


INNER = r"module 'inner\.1'"
DIFFERS = f"{INNER} gives different outputs when run again"
DRAWS = "draws random numbers from "
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "operator": (
        lambda: Model(lambda x: x, nn.Sequential(nn.Identity(), Phase())),
        r"cannot lower aten\.atan2.* \(module 'inner\.1', test_export_refusals\.py:\d+\)",
    ),
    "noise": (
        lambda: Model(lambda x: x + torch.randn(5)),
        r"aten\.randn.*py:\d+\).*in evaluation mode.*`if self\.training`",
    ),
    "permutation": (hiding(permuted), r"aten\.randperm.*py:\d+\).*write it with torch\.rand"),
    "own generator": (hiding(generated), r"aten\.rand\..*py:\d+\).*leave out generator="),
    "own gradient": (
        hiding(differentiated),
        r"in Hidden at test_export_refusals\.py:\d+, .*a forward that differentiates is not",
    ),
    "another device": (hiding(moved), r"py:\d+, .*write \.to\(x\.device\)"),
    "branch": (lambda: Model(branching), "depend on the data"),
    "every key masked": (
        hiding(attention_to_nothing),
        "the gradient holds NaN or inf in torch itself, expected finite .*every key is masked",
    ),
    "angle": (
        lambda: Model(lambda x: fft.fft(x).angle()),
        r"angle of complex numbers at test_export_refusals\.py:\d+: programs support only abs, real",
    ),
    "a transform of many samples": (
        lambda: Model(lambda x: fft.rfft(x.repeat(1, 1000)).abs()[:, :5]),
        r"Fourier transform of 5000 samples at test_export_refusals\.py:\d+: .*torch\.stft",
    ),
    "shape from data": (
        lambda: Model(lambda x: x[x > 0][:5].expand(4, 5)),
        r"x\[mask\] at test_export_refusals\.py:\d+ has a size .*: write torch\.where\(mask, value, x\)",
    ),
    "as many rows as a mask has": (
        hiding(chosen),
        r"x\[mask\] = value at test_export_refusals\.py:\d+: the value has 8 rows.*torch\.where",
    ),
    "item": (lambda: Model(lambda x: x * x.sum().item()), r"_local_scalar_dense.*py:\d+.*keep it"),
    "mutated buffer": (lambda: Model(lambda x: x, Counting()), "'inner.counter'; only the runnin"),
    "python's random": (dropped(lambda m: random.random()), rf"{DRAWS}Python's random \({INNER}"),
    "numpy's random": (dropped(lambda m: np.random.rand()), rf"{DRAWS}numpy\.random \({INNER}"),
    "a name's digits": (hiding(lambda m, x: x * (uuid.uuid4().int % 1000)), DIFFERS),
    "augmented spectra": (
        Augmented,
        r"numpy\.random .*; give the model's config apply_spec_augment=False and layerdrop=0",
    ),
    "a global generator": (
        hiding(lambda m, x: -x if GENERATOR.random() < 1e-9 else x),
        rf"{DRAWS}GENERATOR \({INNER}",
    ),
    "a generator of each call": (dropped(lambda m: default_rng().random()), rf"{DRAWS}.*{INNER}"),
    "its generator": (dropped(lambda m: m.rng.random()), f"{INNER} changes its attribute 'rng'"),
    "torch's seed": (
        hiding(lambda m, x: x * bool(torch.manual_seed(0))),
        rf"{DRAWS}torch's generator \({INNER}",
    ),
    "the clock": (hiding(lambda m, x: x + time.perf_counter() % 1), DIFFERS),
    "a counter": (hiding(counting), f"{INNER} changes its attribute 'count'"),
    "a memory": (hiding(remembering), DIFFERS),
    "a new parameter": (hiding(adding), r"adds the parameter 'inner\.1\.scale'"),
    "an error": (hiding(fails), r"in Hidden at test_export_ref.*py:\d+, `raise KeyError.*first"),
    "values in Python": (
        hiding(lambda m, x: x * float(x.detach().numpy().mean())),
        r"traced in Hidden at test_export_refusals\.py:\d+, .*depend on the data",
    ),
    "inverse": (hiding(inverted), r"cannot lower aten\..*inv.*py:\d+.*: compute it from a const"),
    "rows mixed": (
        lambda: Model(lambda x: x - x.mean(0)),
        r"^model or loss: a row's loss depends on the other rows of its batch",
    ),
    "double": (lambda: Model(lambda x: x).double(), r"'classifier\.weight': torch\.float64"),
    "inner double": (lambda: Model(lambda x: x.double().float()), r"torch\.float64"),
    "not a tensor": (lambda: nn.Sequential(nn.LSTM(5, 3)), r"a tuple, expected a float.*\(4, 3\)"),
    "a dict": (
        plain_dict,
        r"output is a dict, expected .*; let forward return .*, as in `return self\.model\(x\)\['loss'\]`",
    ),
    "an output of Hugging Face's": (
        simple_output,
        r"output is a SimpleOutput, expected .*, as in `return self\.model\(x\)\.logits`",
    ),
    "wrong width": (lambda: nn.Linear(5, 4), r"\(4, 4\), expected float32 \(4, 3\)"),
    "wrong rank": (
        lambda: nn.Sequential(nn.Linear(5, 3), nn.Unflatten(1, (3, 1))),
        r"\(4, 3, 1\), expected",
    ),
    "a class for each of two": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (2, 3))),
        r"output is torch.float32 \(4, 2, 3\), .*labels of shape \(2,\), use --target-shape 2",
    ),
    "lazy": (lambda: nn.LazyLinear(3), "'weight': has no shape yet"),
    "double buffer": (
        lambda: nn.Sequential(nn.Linear(5, 3), Shift()),
        "a buffer or constant in its forward pass has element type torch.float64",
    ),
    "no parameters": (lambda: nn.Identity(), "no parameter requires a gradient"),
    "wrong input": (lambda: nn.Linear(6, 3), r"fails on the sample input torch\.float32 \(4, 5\)"),
    "cumulative statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3)),
        r"module '0': BatchNorm with .*momentum=None",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_model(case: str, tmp_path: Path) -> None:
    build, pattern = REFUSED[case]
    assert re.search(pattern, attempt(build(), tmp_path))


def test_a_cache_is_no_hidden_state(tmp_path: Path) -> None:
    model = hiding(cached)()
    before = random.getstate(), torch.get_rng_state()
    export(model, SAMPLE, batch_size=4, name="m", num_classes=3, folder=tmp_path)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


LABELS = torch.zeros(7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"batch_size": 0}, "batch_size: 0"),
        ({"sample": torch.zeros(4, 5, dtype=torch.float64)}, "sample_input: torch.float64"),
        ({"sample": (torch.zeros(4, 5), torch.zeros(4, 5))}, "sample_input: a tuple, expected one"),
        ({"loss": detached}, "loss: does not depend on the model's parameters"),
        ({"loss": bessel}, r"cannot lower aten\..*i0.* \(test_export_refusals\.py:\d+\)"),
        ({"sample": torch.zeros(0, 5)}, r"sample_input: shape \(0, 5\)"),
        ({"loss": mean_loss}, r"loss: returns shape \(\), expected .*\(4,\)"),
        ({"real_data": (torch.zeros(7, 6), LABELS)}, r"real_data: x is torch.float32 \(7, 6\)"),
        ({"real_data": (torch.zeros(7, 5), torch.zeros(7))}, "real_data: y is torch.float32"),
        ({"real_data": (torch.zeros(7, 5), LABELS[:6])}, "real_data: x has 7 rows and y 6, expect"),
        ({"real_data": (torch.ones(7, 5) / 0, LABELS)}, r"real_data: x\[0\] holds NaN or inf"),
    ],
)
def test_argument(changes: dict[str, Any], pattern: str, tmp_path: Path) -> None:
    assert re.search(pattern, attempt(nn.Linear(5, 3), tmp_path, **changes))


# Wrong programs: a lowering is replaced by a wrong one, and verification must see it.

RELU, ARGMAX = aten.relu.default, aten.argmax.default
RIGHT_ARGMAX = LOWERINGS[ARGMAX]


def network() -> nn.Module:
    """Convolution, ReLU, pooling and a classifier for (1, 6, 6)."""
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(16, 3))


IMAGES = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def unary(kind: str) -> Lowering:
    def lowered(graph: Graph, x: Value) -> Lowered:
        return graph.unary(kind, x)

    return lowered


def divided(graph: Graph, x: Value) -> Lowered:
    """Whole numbers by what is computed: by 0, it ends the process."""
    whole = graph.cast(x, INT)
    return graph.cast(graph.binary("Div", whole, whole), FLOAT)


def smallest(graph: Graph, x: Value, dim: int) -> Lowered:
    return RIGHT_ARGMAX(graph, graph.unary("Neg", x), dim)


@pytest.mark.parametrize(
    ("operator", "lowering", "pattern"),
    [  # wrong gradients and small errors: test_export_verify.py
        (RELU, unary("Sqrt"), "disagrees with torch"),  # NaN
        (ARGMAX, smallest, r"program 'evaluate'.*metric_sum"),
        # onnxruntime has these; a device refuses them.
        (RELU, unary("HardSwish"), r"'gradient' cannot be loaded: .*'HardSwish' is not allowed"),
        (RELU, divided, r"program 'gradient' cannot be loaded: .*Div of integers"),
    ],
)
def test_a_wrong_program_is_seen(
    operator: OpOverload, lowering: Lowering, pattern: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setitem(LOWERINGS, operator, lowering)
    assert re.search(pattern, attempt(network(), tmp_path, sample=IMAGES))


def test_a_small_error_is_seen_and_a_larger_tolerance_allows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nearly(graph: Graph, x: Value) -> Lowered:
        return graph.scale(graph.unary("Relu", x), 1.003)

    monkeypatch.setitem(LOWERINGS, RELU, nearly)
    assert "disagrees with torch" in attempt(network(), tmp_path, sample=IMAGES)
    made = export(
        network(), IMAGES, batch_size=4, name="m", num_classes=3, folder=tmp_path / "b", tolerance=0.05
    )  # fmt: skip
    assert made.verification is not None
    assert made.verification.step_error > 100 * made.verification.torch_error
