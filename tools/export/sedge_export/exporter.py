"""From a torch model to a bundle folder: trace, lower, verify, write.

Nothing is written unless every program agrees with eager torch.
"""

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor, fx, nn

from sedge_edge.backends.rows import Objective, Rows
from sedge_export.defaults import TOLERANCE
from sedge_export.inspection.operators import OperatorRecorder, accepts, inspect_model
from sedge_export.inspection.survey import survey
from sedge_export.lowering.programs import File, Signature, signatures
from sedge_export.lowering.programs import Program as LoadedProgram
from sedge_export.lowering.target import TARGETS
from sedge_export.subject.batches import Samples, random_samples, whole_rows
from sedge_export.subject.network import (
    Network,
    copied,
    random_numbers,
)
from sedge_export.subject.objective import Choice, OwnMetric, chosen
from sedge_export.subject.several_inputs import Given, one_input, packed
from sedge_export.subject.source import place, reason
from sedge_export.tracing.trace import multiply_adds, trace
from sedge_export.verification.verify import verify
from sedge_export.widths.axes import find_axes
from sedge_export.widths.narrow import cut
from sedge_export.writing.step_memory import with_memory
from sedge_protocol.axes import Axes
from sedge_protocol.errors import ExportError, SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import (
    FORMAT,
    FROZEN,
    MAX_BUNDLE_BYTES,
    ONNXRUNTIME,
    Bundle,
    BundleManifest,
    Program,
    TensorSpec,
    Verification,
    frozen_data,
    save,
)
from sedge_protocol.wire.objective import LOSSES, Loss, TargetKind
from sedge_protocol.wire.parts import InputPart


def export(
    model: nn.Module,
    sample_input: Given,
    *,
    batch_size: int,
    name: str,
    num_classes: int,
    folder: Path,
    loss: Loss | Rows | None = None,
    target: TensorSpec | TargetKind | None = None,
    metric: str | OwnMetric | None = None,
    real_data: tuple[Given, Tensor] | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    dropped: float = 0.0,
    backends: Sequence[str] = (ONNXRUNTIME,),
    measure: bool = False,
    labels: Sequence[str] = (),
) -> BundleManifest:
    """Write the model's bundle. Returns its manifest.

    ``sample_input`` (B, ...) sets type and shape of a row; a dict of tensors by name is for a model whose
    ``forward`` takes them by these names, and ``real_data``'s x then is one too. ``loss`` is one of
    ``objective.LOSSES`` or maps outputs (B, C, ...) and targets to one number per row; by default it is
    cross entropy, or the squared error when ``num_classes`` is 0. ``target`` describes a row of y: by
    default a label, or numbers like the outputs; with "none" the input is the target. ``metric`` is one
    of ``objective.METRICS``, or the user's own. ``real_data`` (x, y), any number of rows, is the sample
    from then on, and is used for verification in addition to random rows. ``dropped`` (0 to below 1)
    exports a narrower form, without this share of the channels of every axis: its tensors have the names
    and the order of the whole model's, and are slices of them. ``backends`` are the runtimes that get
    programs, names of ``target.TARGETS``. With ``measure`` the memory of a step is measured in each, which
    takes a second or more (``step_memory``). ``labels`` are the classes' names.

    Raises ``ExportError``, naming the operator and its module, for a model that cannot be lowered, and
    for a program that disagrees with eager torch by more than ``tolerance``.
    """
    _check_backends(backends)
    if labels and len(labels) != num_classes:
        raise ExportError(f"{len(labels)} labels, expected {num_classes}, one for each class")
    with _one_reason():
        model, sample, parts = one_input(model, sample_input)
        x = _sample_batch(sample, batch_size)
        real = None if real_data is None else _real_inputs(real_data[0], parts, x)
        x = x if real is None else _sample_batch(real, batch_size)
        choice = chosen(num_classes, target, loss, metric)
        form = _form(model, x, choice.rows, num_classes, dropped)
        row = target if isinstance(target, TensorSpec) else _row_target(choice, form, x)
        rng = torch.Generator().manual_seed(seed)
        samples = random_samples(x, row, num_classes, batch_size, rng, parts)
        if not accepts(copied(form.model), samples.x):
            samples = whole_rows(x, samples, rng)
        sources = [samples]
        if real is not None and real_data is not None:
            _require_like("y", real_data[1], samples.y)
            sources.append(Samples(real, real_data[1].detach().cpu()))
        graphs = _traced(form, x, samples.y[:batch_size])
        lowered: dict[str, dict[str, File]] = {}
        measured: list[Verification] = []
        for backend in backends:
            with _naming(backend):
                lowered[backend] = TARGETS[backend].lower(
                    graphs, form.signatures, form.operators.where
                )
                measured.append(
                    _verified(form, backend, lowered[backend], sources, batch_size, tolerance, seed)
                )
    costs = {key: multiply_adds(graph) for key, graph in graphs.items()}
    bundle = _bundle(form, lowered, _worst(measured), name, x, row, num_classes, choice, costs)
    if sum(map(len, bundle.files.values())) > MAX_BUNDLE_BYTES:
        raise ExportError(f"bundle {name!r}: programs hold more than {MAX_BUNDLE_BYTES} bytes")
    named = msgspec.structs.replace(bundle.manifest, labels=tuple(labels), parts=parts)
    bundle = msgspec.structs.replace(bundle, manifest=named)
    if measure:
        bundle = with_memory(bundle, form.network.theta)
    save(folder, bundle, form.network.theta)
    return bundle.manifest


def _check_backends(backends: Sequence[str]) -> None:
    if not backends or len(set(backends)) < len(backends) or not set(backends) <= set(TARGETS):
        raise ExportError(f"backends: {', '.join(backends)}, expected of {', '.join(TARGETS)}")
    for backend in backends:
        TARGETS[backend].check_installed()


@contextmanager
def _one_reason() -> Generator[None]:
    """Turn whatever the user's model raises into one ``ExportError`` that says where."""
    try:
        yield
    except SedgeError:
        raise
    except Exception as exc:  # the user's code may raise anything
        raise ExportError(f"model: cannot be exported{place(exc)}: {reason(exc)}") from exc


@contextmanager
def _naming(backend: str) -> Generator[None]:
    try:
        yield
    except ExportError as exc:
        raise ExportError(f"{backend}: {exc}") from exc


def _worst(measured: Sequence[Verification]) -> Verification:
    """One verification for all backends: the largest errors."""
    return msgspec.structs.replace(
        measured[0],
        step_error=max(one.step_error for one in measured),
        epoch_error=max(one.epoch_error for one in measured),
        torch_error=max(one.torch_error for one in measured),
        versions={name: found for one in measured for name, found in one.versions.items()},
        kinks=tuple(kink for one in measured for kink in one.kinks),
    )


def _sample_batch(given: object, batch_size: int) -> Tensor:
    if not isinstance(given, Tensor):
        raise ExportError(f"sample_input: a {type(given).__name__}, expected one tensor (B, ...)")
    sample = given.detach().cpu()
    if sample.ndim < 1 or sample.numel() == 0:
        raise ExportError(f"sample_input: shape {tuple(sample.shape)}, expected (B, ...)")
    if sample.dtype not in (torch.float32, torch.int64):
        raise ExportError(f"sample_input: {sample.dtype}, expected torch.float32 or torch.int64")
    if not 1 <= batch_size <= 65536:
        raise ExportError(f"batch_size: {batch_size}, expected 1 to 65536")
    return sample[torch.arange(batch_size) % len(sample)]


def _real_inputs(given: Given, parts: Sequence[InputPart], x: Tensor) -> Tensor:
    """The user's rows as one tensor like x. Raises ``ExportError``."""
    if not isinstance(given, Tensor):
        missing = [part.name for part in parts if part.name not in given]
        if missing or not parts:
            names = ", ".join(part.name for part in parts) or "one tensor"
            raise ExportError(f"real_data: x has {', '.join(given)}, expected {names}")
        found_parts, given = packed({part.name: given[part.name] for part in parts}, "real_data")
        if found_parts != tuple(parts):
            raise ExportError(f"real_data: x has {found_parts}, expected {tuple(parts)}")
    _require_like("x", given, x)
    return given.detach().cpu()


def _require_like(label: str, found: Tensor, like: Tensor) -> None:
    if found.dtype != like.dtype or found.shape[1:] != like.shape[1:] or not len(found):
        raise ExportError(
            f"real_data: {label} is {found.dtype} {tuple(found.shape)},"
            f" expected {like.dtype} (N, {', '.join(map(str, like.shape[1:]))})"
        )


@dataclass(frozen=True)
class _Form:
    """The model at the width that is exported; ``outputs`` is the shape of a row of its outputs."""

    model: nn.Module
    network: Network
    operators: OperatorRecorder
    outputs: tuple[int, ...]
    axes: Axes | None
    dropped: float

    @property
    def signatures(self) -> dict[str, Signature]:
        """The programs' inputs and outputs."""
        network = self.network
        held = network.noise > 0, network.frozen is not None
        return signatures(bool(network.layout.statistics), *held)

    @property
    def constant(self) -> dict[str, Theta]:
        """The programs' inputs that are the same in every call."""
        values = self.network.frozen_values
        return {} if values is None else {FROZEN: values}


def _form(
    model: nn.Module, x: Tensor, objective: Objective, num_classes: int, dropped: float
) -> _Form:
    network = Network(model, objective)
    operators, outputs = inspect_model(copied(model), x, num_classes)
    survey(model, x)
    network.noise = random_numbers(model, x)
    found = find_axes(network, x)
    if dropped:
        model = cut(model, x, network.layout, found, dropped)
        network = Network(model, objective)
        operators, outputs = inspect_model(copied(model), x, num_classes)
        network.noise = random_numbers(model, x)
    axes = found.axes.narrowed(dropped) if found.axes.channels else None
    return _Form(model, network, operators, outputs, axes, dropped)


def _row_target(choice: Choice, form: _Form, x: Tensor) -> TensorSpec | None:
    """A row of y: a label, numbers like the outputs, or None where the input is the target."""
    if choice.target == "class":
        return TensorSpec("int64", ())
    if choice.target == "float":
        return TensorSpec("float32", form.outputs)
    as_large = choice.loss.name not in LOSSES or form.outputs == tuple(x.shape[1:])
    if not as_large or not x.is_floating_point():
        raise ExportError(
            f"target 'none': the model gives rows of float32 {form.outputs} for an input of {x.dtype}"
            f" {tuple(x.shape[1:])}, expected the same"
        )
    return None


def _traced(form: _Form, x: Tensor, y: Tensor) -> dict[str, fx.GraphModule]:
    network = form.network
    functions: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
        "gradient": network.gradient,
        "evaluate": network.evaluate,
        "predict": network.predict,
    }
    inputs = {"theta": torch.from_numpy(network.theta), "x": x, "y": y, "w": torch.ones(len(x))}
    inputs |= {name: torch.from_numpy(values) for name, values in form.constant.items()}
    inputs["noise"] = torch.full((network.noise,), 0.5)
    graphs: dict[str, fx.GraphModule] = {}
    for name, function in functions.items():
        network.model.train(name == "gradient")
        names = form.signatures[name].inputs
        with network.unchanged():
            graphs[name] = trace(_named(function, names), [inputs[key] for key in names])
    return graphs


def _named(
    function: Callable[..., Tensor | tuple[Tensor, ...]], names: Sequence[str]
) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """The function of its arguments in the order of these names."""
    return lambda *inputs: function(**dict(zip(names, inputs, strict=True)))


def _fed(program: LoadedProgram, constant: Mapping[str, Theta]) -> LoadedProgram:
    """A program with inputs that are the same in every run."""
    return lambda feed: program({**feed, **constant})


def _verified(
    form: _Form, backend: str, lowered: Mapping[str, File], sources: Sequence[Samples], batch_size: int,
    tolerance: float, seed: int,
) -> Verification:  # fmt: skip
    """Load a backend's programs and verify them; all backends meet the same batches."""
    runtime = TARGETS[backend]
    loaded = {
        key: _fed(runtime.load(key, file.data, form.signatures[key]), form.constant)
        for key, file in lowered.items()
    }
    rng = torch.Generator().manual_seed(seed)
    return verify(
        loaded, form.model, form.network, sources, batch_size, tolerance, rng, runtime.packages
    )


def _bundle(
    form: _Form, lowered: dict[str, dict[str, File]], measured: Verification, name: str, x: Tensor,
    target: TensorSpec | None, num_classes: int, choice: Choice, costs: Mapping[str, int],
) -> Bundle:  # fmt: skip
    files = {file.name: file.data for programs in lowered.values() for file in programs.values()}
    entries = tuple(
        Program(
            key,
            backend,
            file.name,
            hashlib.sha256(file.data).hexdigest(),
            multiply_adds=costs[key],
        )
        for backend, programs in lowered.items()
        for key, file in programs.items()
    )
    layout, values = form.network.frozen, form.network.frozen_values
    frozen = None if layout is None or values is None else frozen_data(layout, values)
    manifest = BundleManifest(
        format=FORMAT,
        name=name,
        layout=form.network.layout,
        batch_size=len(x),
        input=TensorSpec("int64" if x.dtype == torch.int64 else "float32", tuple(x.shape[1:])),
        target=target,
        num_classes=num_classes,
        frozen=frozen,
        noise=form.network.noise,
        loss=choice.loss,
        metric=choice.metric,
        uses_batch_statistics=form.network.uses_batch_statistics,
        programs=entries,
        verification=measured,
        axes=form.axes,
        dropped=form.dropped,
    )
    return Bundle(manifest, files, values)
