"""The fleet's model: built by name in any process, and exported once. Only building it imports torch."""

import hashlib
import importlib
import importlib.util
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sedge_edge.training.examples import Inputs
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import Dataset
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.host.user_code import imported, unimportable
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.objective import Loss, TargetKind, own_metric
from sedge_protocol.wire.parts import InputPart, unpack

if TYPE_CHECKING:
    from torch import nn

    from sedge_edge.backends.guided import GuidedLoss
    from sedge_edge.backends.rows import Rows
    from sedge_export.subject.several_inputs import Given

AVGCNN, MLP, RESNET8 = "avgcnn", "mlp", "resnet8"


@dataclass(frozen=True)
class ModelSource:
    """How to build the model: from ``factory``, a "module:function" looked up in ``base``, or by ``name``.

    ``shape`` and ``dtype`` (numpy's name) describe one example's input, and ``outputs`` is the number of
    outputs that a built-in model has. ``config`` is the fleet file's [model], and ``target`` says what the
    model predicts. ``labels`` is the shape of an example's labels if it has several. ``parts`` are the
    inputs of a ``factory``'s model if it takes several.
    """

    name: str
    factory: str
    base: Path
    shape: tuple[int, ...]
    outputs: int
    target: TargetKind
    config: ModelConfig
    dtype: str = "float32"
    parts: tuple[InputPart, ...] = ()
    labels: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: ModelConfig, dataset: Dataset, base: Path) -> "ModelSource":
        """Return the configured model or, if none is configured, one that suits the data."""
        shape = dataset.inputs.shape[1:]
        name = config.factory or config.name or (AVGCNN if shape == (1, 28, 28) else MLP)
        dtype, target = str(dataset.inputs.dtype), config.target or dataset.target
        if target not in ("none", dataset.target):
            raise ConfigError(
                "model.target", target, f"{dataset.target}, the target of {dataset.name}"
            )
        outputs = math.prod(shape) if target == "none" else dataset.outputs
        parts = dataset.parts if config.factory else ()
        labels = dataset.targets.shape[1:] if target == "class" else ()
        if labels and not config.factory:
            raise ConfigError("model.factory", "", f"a model for labels of shape {labels} per row")
        return cls(name, config.factory, base, shape, outputs, target, config, dtype, parts, labels)

    @property
    def num_classes(self) -> int:
        """The number of classes, or 0 if the target is not a class."""
        return self.outputs if self.target == "class" else 0

    def classes(self, row: tuple[int, ...]) -> int:
        """Return the number of classes for a model whose output per example has the shape ``row``.

        Returns 0 if the target is not a class. If an example has several labels, the output's shape
        determines the number, because the data need not contain every class: no text contains every token.
        """
        if not self.labels or len(row) != len(self.labels) + 1:
            return self.num_classes
        return row[0] if row[1:] == self.labels else row[-1]

    @property
    def loss(self) -> Loss | None:
        """The configured built-in loss, or None for the target's usual loss."""
        config = self.config
        adjusted = bool(config.label_smoothing or config.class_weights)
        if not config.loss and not adjusted:
            return None
        return Loss(config.loss or "cross_entropy", config.label_smoothing, config.class_weights)

    def own_loss(self) -> "Rows | None":
        """Import the user's loss, or return None if the config names none.

        Raises ``ConfigError`` if that fails.
        """
        if ":" not in self.config.loss:
            return None
        return imported(self.config.loss, self.base, "model.loss")

    def guided(self) -> "GuidedLoss | None":
        """Load the guided loss, or return None if none is configured.

        Raises ``ConfigError`` for an unknown one.
        """
        from sedge_edge.backends.guided_losses import guided_loss

        return guided_loss(self.config.guided, self.base, "model.guided")

    def own_metric(self) -> "Rows | None":
        """Import the user's metric, or return None if the config names none.

        Raises ``ConfigError`` if the import fails.
        """
        metric = own_metric(self.config.metric)
        return None if metric is None else imported(metric.name, self.base, "model.metric")

    @property
    def code(self) -> str:
        """A hash of the file that defines the user's model, or "" for a built-in model."""
        return code_hash(self.factory, self.base)

    def build(self, seed: int, dropped: float = 0.0) -> "nn.Module":
        """Build the model with its initial weights, leaving out the share ``dropped`` of its channels.

        Raises ``ConfigError`` if the user's own model cannot be built.
        """
        import torch

        from sedge_edge.backends.several_inputs import take_apart

        module = self.bare(seed)
        if self.parts:
            take_apart(module, self.parts)
        if not dropped:
            return module
        from sedge_export.widths.narrow import narrowed  # slow: imports torch's tracing

        sample = torch.zeros(2, *self.shape, dtype=getattr(torch, self.dtype))
        return narrowed(module, sample, dropped)

    def bare(self, seed: int) -> "nn.Module":
        """Build the model with all its channels.

        If it has several inputs, they are not yet packed into one.
        """
        import torch

        torch.manual_seed(seed)
        return self._own() if self.factory else self._named()

    def _named(self) -> "nn.Module":
        from sedge_export.models import avgcnn, mlp, resnet8

        if self.name in (AVGCNN, RESNET8):
            channels = self._channels()
            if self.name == AVGCNN:
                return avgcnn(channels, self.outputs, self.shape[-1])
            return resnet8(channels, self.outputs)
        return mlp(math.prod(self.shape), 200, self.outputs)

    def _channels(self) -> int:
        """Return the number of image channels. Raises ``ConfigError`` if examples are not square images."""
        if len(self.shape) != 3 or self.shape[1] != self.shape[2]:
            raise ConfigError("model.name", self.name, f"mlp for examples of shape {self.shape}")
        return self.shape[0]

    def _own(self) -> "nn.Module":
        from torch import nn

        module, _, function = self.factory.partition(":")
        expected = "module:function that gives a torch.nn.Module"
        if not (module and function):
            raise ConfigError("model.factory", self.factory, expected)
        sys.path.insert(0, str(self.base))
        try:
            made: object = getattr(importlib.import_module(module), function)()
        except (Exception, SystemExit) as exc:  # the user's code may raise anything
            why = f"{expected} ({unimportable(exc, self.factory, self.base)})"
            raise ConfigError("model.factory", self.factory, why) from exc
        finally:
            sys.path.remove(str(self.base))
        if not isinstance(made, nn.Module):
            raise ConfigError(
                "model.factory", self.factory, f"{expected}, not {type(made).__name__}"
            )
        return made


def code_hash(name: str, base: Path) -> str:
    """Hash the file that defines ``name``, a "module:function" looked up in ``base``.

    Returns "" if there is no such file.
    """
    if ":" not in name:
        return ""
    sys.path.insert(0, str(base))
    try:
        spec = importlib.util.find_spec(name.partition(":")[0])
    except (ImportError, ValueError):  # the error is reported when the function is called
        return ""
    finally:
        sys.path.remove(str(base))
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


@dataclass(frozen=True)
class Sample:
    """A batch ``rows`` (B, ...) of the data's first examples, for exporting the model.

    ``doubtful`` is the data set's name if its float targets might be meant as labels, otherwise "".
    """

    rows: Inputs
    doubtful: str

    @classmethod
    def of(cls, source: ModelSource, dataset: Dataset) -> "Sample":
        """Return the first batch of ``dataset``."""
        y = dataset.targets
        asked = not source.config.target and source.target == "float"
        doubtful = asked and bool((y == np.rint(y)).all())
        rows = dataset.inputs[: source.config.batch_size]
        return cls(rows, dataset.name if doubtful else "")


def export_model(
    source: ModelSource, sample: Sample, seed: int, folder: Path, dropped: float = 0.0
) -> None:
    """Export the model into a bundle at ``folder``, verified on the sample's rows.

    ``dropped`` is the share of channels to leave out. Raises ``DataError`` if the targets might be meant as
    labels, unless the model has one output and so must predict a number.
    """
    import torch

    from sedge_export import export
    from sedge_export.subject.objective import OwnMetric

    torch.set_num_threads(1)
    rows = sample.rows
    metric, judged = own_metric(source.config.metric), source.own_metric()
    several = {name: torch.from_numpy(part) for name, part in unpack(rows, source.parts).items()}
    module, given = source.bare(seed), several or torch.from_numpy(rows)
    row = _outputs(module, given) if source.factory else ()
    if sample.doubtful:
        _require_numbers(source, sample, row)
    export(
        module,
        given,
        batch_size=source.config.batch_size,
        name=source.name.rpartition(":")[2],
        num_classes=source.classes(row),
        loss=source.own_loss() or source.loss,
        target=TensorSpec("int64", source.labels) if source.labels else source.target,
        metric=OwnMetric(metric, judged) if metric and judged else source.config.metric or None,
        folder=folder,
        dropped=dropped,
        frozen=source.config.frozen,
        guided=source.guided(),
    )


def _require_numbers(source: ModelSource, sample: Sample, row: tuple[int, ...]) -> None:
    outputs = math.prod(row) if row else 0
    if outputs == 1:
        return
    has = f" and the model has {outputs} outputs" if outputs else ""
    raise DataError(
        f"{sample.doubtful}: y holds whole numbers as floats{has}: for labels, use y.astype(int); "
        'for targets, set [model] target = "float"'
    )


def _outputs(module: "nn.Module", sample: "Given") -> tuple[int, ...]:
    """Return the shape of the model's output per example.

    Returns () if the model fails, which the export will report.
    """
    import torch

    module.eval()
    try:
        with torch.no_grad():
            given: object = module(sample) if isinstance(sample, torch.Tensor) else module(**sample)
    except Exception:  # the user's code may raise anything
        return ()
    return tuple(given.shape[1:]) if isinstance(given, torch.Tensor) else ()
