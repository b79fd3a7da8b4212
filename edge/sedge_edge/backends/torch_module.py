"""Programs of the backend ``torch``, which uses the user's own module instead of the bundle's programs.

``backend.model`` names a function without arguments. It returns the exported module, or (module, loss),
or (module, loss, metric). Loss and metric map outputs (B, C, ...) and targets to one number per row,
(B,). By default, the bundle's loss and metric are used. autograd computes the gradient. The optimizer is
the agent's own, as with every backend. The module runs on the CUDA device if there is one, otherwise on
the CPU.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_edge.backends.bundle_trainer import Arrays, LoadedProgram, LoadProgram
from sedge_edge.backends.draws import draws
from sedge_edge.backends.flat_module import FlatModule, place_frozen
from sedge_edge.backends.guided_losses import GUIDED_LOSSES
from sedge_edge.backends.repeat import repeatable
from sedge_edge.backends.rows import Objective, Rows, row_loss, row_metric
from sedge_edge.backends.several_inputs import take_apart
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.user_code import importable, imported
from sedge_protocol.layout import Layout, Role
from sedge_protocol.layout import Tensor as LayoutTensor
from sedge_protocol.wire.bundle import Bundle, BundleManifest
from sedge_protocol.wire.programs import GUIDED, Signature

KEY = "backend.model"


def torch_programs(bundle: Bundle, name: str, folder: Path, threads: int) -> LoadProgram:
    """Return a function that loads programs made from the user's module.

    The function ``name``, found from ``folder``, creates the module. Raises ``ConfigError`` if the user's
    code fails, or if the module's tensors differ from the bundle's.
    """
    torch.set_num_threads(threads)
    module, loss, metric = _built(name, folder)
    if bundle.manifest.parts:
        take_apart(module, bundle.manifest.parts)
    model = _Model(bundle, module, _objective(bundle.manifest, loss, metric, name), name)
    functions: dict[str, Callable[..., list[Tensor]]] = {
        "gradient": model.gradient, "evaluate": model.evaluate, "predict": model.predict,
        GUIDED: model.guided,
    }  # fmt: skip

    def load(signature: Signature) -> LoadedProgram:
        return TorchProgram(model, functions[signature.program])

    return load


class TorchProgram:
    """A ``LoadedProgram`` that shares its model with the other programs.

    Only one of them runs at a time.
    """

    def __init__(self, model: "_Model", function: Callable[..., list[Tensor]]) -> None:
        self._model, self._function = model, function

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """Run the program. Returns its outputs in order, in new arrays."""
        given = {name: self._model.tensor(array) for name, array in feeds.items()}
        with self._model.lock, torch.no_grad(), repeatable(self._model.device):
            made = self._function(**given)
        return [tensor.numpy(force=True) for tensor in made]


class _Model:
    """The user's model. Each method is a program, as a function of tensors on the model's device."""

    def __init__(self, bundle: Bundle, module: nn.Module, objective: Objective, name: str) -> None:
        layout = bundle.manifest.layout
        _check(module, bundle.manifest.tensors, name)
        place_frozen(module, bundle)
        for key, parameter in module.named_parameters():
            parameter.requires_grad_(key in layout.by_name)
        self.lock = threading.Lock()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._objective = objective
        self._flat = FlatModule(module, layout, _views(layout), self.device)

    def tensor(self, array: NDArray[np.float32 | np.int64]) -> Tensor:
        """Return a tensor with the array's values, which must not be changed."""
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.device)

    def gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor, noise: Tensor | None = None,
        guidance: Mapping[str, Tensor] | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """Return the gradient (n,), the weighted mean loss, and the statistics (s,) if there are any."""
        rows = self._flat.rows(self._objective, x, y, guidance)

        def mean_loss() -> Tensor:
            with nullcontext() if noise is None else draws(noise):
                losses = rows()
            return (w * losses).sum() / w.sum()

        found = self._flat.differentiate(theta, mean_loss)
        return [cast(Tensor, part) for part in found if part is not None]

    def guided(
        self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor, noise: Tensor | None = None,
        **guidance: Tensor,
    ) -> list[Tensor]:  # fmt: skip
        """Return the same as ``gradient`` for the guided loss, whose inputs are ``guidance``."""
        return self.gradient(theta, x, y, w, noise, guidance)

    def evaluate(self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
        """Return the sums of losses, metrics and weights over the rows; see ``Objective.sums``."""
        (outputs,) = self.predict(theta, x)
        with self.device:
            return [*self._objective.sums(outputs, y, w)]

    def predict(self, theta: Tensor, x: Tensor) -> list[Tensor]:
        """Return the outputs (B, C, ...) in evaluation mode."""
        self._flat.place(theta)
        self._flat.module.eval()
        return [self._flat.module(x)]


def _views(layout: Layout) -> Callable[[Tensor], dict[str, Tensor]]:
    return lambda vector: {t.name: vector[t.slice].view(t.shape) for t in layout.tensors}


def _built(name: str, folder: Path) -> tuple[nn.Module, Rows | None, Rows | None]:
    """Call the user's function. Returns the module, and its loss and metric if there are any."""
    function = imported(name, folder, KEY)
    expected = "a torch.nn.Module, or a tuple (module, loss) or (module, loss, metric)"
    try:
        with importable(folder):
            built: object = function()
    except (Exception, SystemExit) as exc:
        raise ConfigError(name, f"{type(exc).__name__}: {exc}", expected) from exc
    match built:
        case nn.Module():
            return built, None, None
        case (nn.Module() as module, loss) if callable(loss):
            return module, cast(Rows, loss), None
        case (nn.Module() as module, loss, metric) if callable(loss) and callable(metric):
            return module, cast(Rows, loss), cast(Rows, metric)
        case _:
            raise ConfigError(name, type(built).__name__, expected)


def _objective(
    manifest: BundleManifest, own: Rows | None, own_metric: Rows | None, name: str
) -> Objective:
    """Return the loss and the metric that a model uses.

    The loss is the user's own or else the bundle's. The metric is the bundle's if it is built in, or else
    the user's own. Raises ``ConfigError`` if neither provides one of them, or if the bundle's guided loss
    is unknown.
    """
    loss = own or row_loss(manifest.loss)
    if loss is None:
        expected = f"a tuple (module, loss): the bundle's loss is {manifest.loss.name}"
        raise ConfigError(name, "a torch.nn.Module alone", expected)
    metric = row_metric(manifest.metric, loss) or own_metric
    if metric is None:
        expected = f"a tuple (module, loss, metric): the bundle's metric is {manifest.metric.name}"
        raise ConfigError(name, "no metric", expected)
    guided = None if manifest.guide is None else GUIDED_LOSSES.get(manifest.guide.name)
    if manifest.guide is not None and guided is None:
        expected = f"{', '.join(GUIDED_LOSSES)} with the backend torch"
        raise ConfigError(name, f"the guided loss {manifest.guide.name}", expected)
    return Objective(loss, metric, manifest.metric.reported, guided)


def _check(module: nn.Module, tensors: Sequence[LayoutTensor], name: str) -> None:
    """Raise ``ConfigError`` unless the module's tensors match the bundle's."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for tensor in tensors:
        held = (parameters if tensor.role is Role.PARAMETER else buffers).get(tensor.name)
        expected = f"{tensor.role} {tensor.name} of float32 {tensor.shape}, as in the bundle"
        if held is None:
            raise ConfigError(name, f"no {tensor.name}", expected)
        if held.dtype is not torch.float32 or tuple(held.shape) != tensor.shape:
            raise ConfigError(name, f"{held.dtype} {tuple(held.shape)}", expected)
    if unknown := parameters.keys() - {tensor.name for tensor in tensors}:
        raise ConfigError(name, f"parameter {min(unknown)}", "only the bundle's parameters")
