"""Models that no program can have, each refused with what to write instead."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sedge_export.subject.refusals import require_exportable
from sedge_protocol.errors import ExportError


def layer(change: Callable[[nn.Linear], object] = lambda _: None) -> nn.Linear:
    made = nn.Linear(4, 3)
    change(made)
    return made


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(layer()))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(layer())


def spoil(made: nn.Linear) -> None:
    with torch.no_grad():
        made.bias[1] = torch.nan


KINDS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "double": (lambda: layer().double(), "parameter 'weight': torch.float64, expected .*: model.float()"),
    "complex": (
        lambda: layer(lambda m: m.register_parameter("c", nn.Parameter(torch.zeros(2) + 0j))),
        "parameter 'c': torch.complex64, expected .*: torch.view_as_real",
    ),
    "sparse": (
        lambda: layer(lambda m: m.register_buffer("adj", torch.eye(4).to_sparse())),
        "buffer 'adj': torch.sparse_coo, expected a dense tensor: .to_dense()",
    ),
    "meta": (lambda: layer().to("meta"), "parameter 'weight': on the meta device, expected values"),
    "NaN": (lambda: layer(spoil), "parameter 'bias': holds NaN or inf, expected finite numbers"),
    "hook": (
        lambda: layer(lambda m: m.weight.register_hook(lambda g: 2 * g)),  # type: ignore[no-untyped-call]
        "parameter 'weight': a hook on its gradient, which devices would not run",
    ),
    "parallel": (
        lambda: nn.DataParallel(layer()),
        "model: a DataParallel, expected the module that it wraps: pass its .module",
    ),
    "script": (scripted, "model: a torch.jit.ScriptModule, expected the module that it was made from"),
    "orthogonal": (
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(layer())),
        r"parametrizations\.orthogonal, expected plain .*remove_parametrizations",
    ),
    "weight_norm": (old_weight_norm, "module '0': torch.nn.utils.weight_norm, .* remove_weight_norm"),
    "old spectral_norm": (
        lambda: nn.Sequential(nn.utils.spectral_norm(layer())),
        "module '0': torch.nn.utils.spectral_norm, .* remove_spectral_norm",
    ),
    "spectral_norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(layer())),
        r"parametrizations\.spectral_norm, expected plain .*remove_parametrizations",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_message_says_what_to_write(kind: str) -> None:
    build, message = KINDS[kind]
    with pytest.raises(ExportError, match=message.replace("()", re.escape("()"))):
        require_exportable(build())
