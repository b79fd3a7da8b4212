"""Updates the width attributes of torch's layers after their tensors have been cut.

A torch layer that is not in the table is never narrowed. The user's own modules have no such attributes.
"""

from collections.abc import Callable
from typing import TypeAlias, cast

from torch import nn

from sedge_protocol.errors import ExportError

Resize: TypeAlias = Callable[[str, nn.Module], None]

_STRUCTURE = ("torch.nn.modules.module", "torch.nn.modules.container")


def resizable(module: nn.Module) -> bool:
    """Return True if the module's own parameters may be cut."""
    if _of_table(module):
        return True
    bases = [base.__module__ for base in type(module).__mro__]
    return not any(base.startswith("torch.nn.") and base not in _STRUCTURE for base in bases)


def resize(name: str, module: nn.Module) -> None:
    """Make a layer's attributes agree with its tensors. Raises ``ExportError`` if that is impossible."""
    if reset := _of_table(module):
        reset(name, module)


def _of_table(module: nn.Module) -> Resize | None:
    return next((reset for kinds, reset in _TABLE if isinstance(module, kinds)), None)


def _convolution(_name: str, module: nn.Module) -> None:
    layer = cast(nn.Conv2d, module)
    if layer.groups == 1:
        layer.out_channels, layer.in_channels = layer.weight.shape[:2]
    elif layer.groups == layer.in_channels:  # depthwise, with unchanged filters per channel
        each = layer.out_channels // layer.groups
        layer.out_channels = layer.weight.shape[0]
        layer.in_channels = layer.groups = layer.out_channels // each


def _transposed(_name: str, module: nn.Module) -> None:
    layer = cast(nn.ConvTranspose2d, module)
    if layer.groups == 1:
        layer.in_channels, layer.out_channels = layer.weight.shape[:2]


def _linear(_name: str, module: nn.Module) -> None:
    layer = cast(nn.Linear, module)
    layer.out_features, layer.in_features = layer.weight.shape


def _embedding(_name: str, module: nn.Module) -> None:
    layer = cast(nn.Embedding, module)
    layer.embedding_dim = layer.weight.shape[1]


def _batch_norm(_name: str, module: nn.Module) -> None:
    layer = cast(nn.BatchNorm2d, module)
    if layer.running_mean is not None:
        layer.num_features = len(layer.running_mean)


def _instance_norm(_name: str, module: nn.Module) -> None:
    layer = cast(nn.InstanceNorm2d, module)
    if layer.affine:
        layer.num_features = len(layer.weight)


def _group_norm(name: str, module: nn.Module) -> None:
    """Use the fewest groups no larger than before. Raises ``ExportError`` if they would be unequal."""
    layer = cast(nn.GroupNorm, module)
    if not layer.affine:
        return
    channels, each = len(layer.weight), layer.num_channels // layer.num_groups
    groups = -(-channels // each)
    if channels % groups:
        raise ExportError(
            f"module {name!r}: {channels} channels in groups of {each}, expected whole groups;"
            f" leave out a different share of the {layer.num_channels} channels"
        )
    layer.num_channels, layer.num_groups = channels, groups


def _layer_norm(_name: str, module: nn.Module) -> None:
    layer = cast(nn.LayerNorm, module)
    if layer.elementwise_affine:
        layer.normalized_shape = tuple(layer.weight.shape)


def _prelu(_name: str, module: nn.Module) -> None:
    layer = cast(nn.PReLU, module)
    layer.num_parameters = len(layer.weight)


_TABLE: tuple[tuple[tuple[type[nn.Module], ...], Resize], ...] = (
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _transposed),
    ((nn.Linear,), _linear),
    ((nn.Embedding,), _embedding),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    ((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _instance_norm),
    ((nn.GroupNorm,), _group_norm),
    ((nn.LayerNorm, nn.RMSNorm), _layer_norm),
    ((nn.PReLU,), _prelu),
)
