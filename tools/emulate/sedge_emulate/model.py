"""The fleet's model: built by name in any process, and exported once. Imports torch when asked to build."""

import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import Dataset
from sedge_protocol.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

AVGCNN, MLP, RESNET8 = "avgcnn", "mlp", "resnet8"


@dataclass(frozen=True)
class ModelSource:
    """Where the model comes from: ``factory``, "module:function" looked up in ``base``, or by its name.

    ``shape`` and ``dtype`` (numpy's name) are one example's, ``num_classes`` the data set's.
    """

    name: str
    factory: str
    base: Path
    shape: tuple[int, ...]
    num_classes: int
    batch_size: int
    dtype: str = "float32"

    @classmethod
    def of(cls, config: ModelConfig, dataset: Dataset, base: Path) -> "ModelSource":
        """The configured model; without one, what suits the data."""
        shape = dataset.inputs.shape[1:]
        name = config.factory or config.name or (AVGCNN if shape == (1, 28, 28) else MLP)
        dtype = str(dataset.inputs.dtype)
        size = config.batch_size
        return cls(name, config.factory, base, shape, dataset.num_classes, size, dtype)

    @property
    def code(self) -> str:
        """A hash of the file with the user's own code; empty without one."""
        if not self.factory:
            return ""
        sys.path.insert(0, str(self.base))
        try:
            spec = importlib.util.find_spec(self.factory.partition(":")[0])
        except (ImportError, ValueError):  # reported when the model is built
            return ""
        finally:
            sys.path.remove(str(self.base))
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            return ""
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()

    def build(self, seed: int, dropped: float = 0.0) -> "nn.Module":
        """The model with its initial weights, or its form without the share ``dropped`` of the channels.

        Raises ``ConfigError`` where the user's own model cannot be built.
        """
        import torch

        from sedge_export.narrow import narrowed

        torch.manual_seed(seed)
        module = self._own() if self.factory else self._named()
        if not dropped:
            return module
        sample = torch.zeros(2, *self.shape, dtype=getattr(torch, self.dtype))
        return narrowed(module, sample, dropped)

    def _named(self) -> "nn.Module":
        from sedge_export.models import avgcnn, mlp, resnet8

        if self.name in (AVGCNN, RESNET8):
            channels = self._channels()
            if self.name == AVGCNN:
                return avgcnn(channels, self.num_classes, self.shape[-1])
            return resnet8(channels, self.num_classes)
        inputs = 1
        for extent in self.shape:
            inputs *= extent
        return mlp(inputs, 200, self.num_classes)

    def _channels(self) -> int:
        """The channels of an image. Raises ``ConfigError`` for examples that are none."""
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
        except (Exception, SystemExit) as exc:  # whatever the user's own code raises
            why = f"{expected} ({type(exc).__name__}: {exc})"
            raise ConfigError("model.factory", self.factory, why) from exc
        finally:
            sys.path.remove(str(self.base))
        if not isinstance(made, nn.Module):
            raise ConfigError(
                "model.factory", self.factory, f"{expected}, not {type(made).__name__}"
            )
        return made


def export_model(
    source: ModelSource, dataset: Dataset, seed: int, folder: Path, dropped: float = 0.0
) -> None:
    """Export the model into a bundle at ``folder``, verified on the data's first batch.

    With ``dropped`` it is the form that lacks this share of the channels.
    """
    import torch

    from sedge_export import export

    torch.set_num_threads(1)
    export(
        source.build(seed),
        torch.from_numpy(dataset.inputs[: source.batch_size]),
        batch_size=source.batch_size,
        name=source.name.rpartition(":")[2],
        num_classes=source.num_classes,
        folder=folder,
        dropped=dropped,
    )
