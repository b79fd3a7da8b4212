"""``sedge-export bundle``: writes a bundle without programs, for devices that train with their own code.

The user's function, called without arguments, returns the initial parameters: a list of arrays, or a
dict of arrays by name, in the order in which the devices' functions receive them. An array whose name
ends in ``running_mean`` or ``running_var``, as in torch's BatchNorm, is a statistic.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.host.user_code import importable, imported
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.bundle import FORMAT, Bundle, BundleManifest, TensorSpec, save
from sedge_protocol.wire.objective import ACCURACY, LOSS, Loss, Metric

# The loss of a model without labels is known only to the devices' own code.
_OWN_LOSS = "own:loss"
_STATISTICS = ("running_mean", "running_var")


def write_parameters(options: argparse.Namespace) -> str:
    """Write the bundle that the options of ``bundle`` describe. Returns the line to print.

    Raises the same errors as ``write_bundle``.
    """
    classes: int = options.num_classes
    shape: tuple[int, ...] | None = options.target_shape
    target = None
    if classes or shape is not None:
        target = TensorSpec("int64" if classes else "float32", shape or ())
    manifest = write_bundle(
        options.function,
        options.name,
        TensorSpec(options.sample_type, options.sample_shape),
        target,
        options.batch_size,
        classes,
        options.metric or (ACCURACY if classes else LOSS),
        Path(options.out),
    )
    layout = manifest.layout
    return f"{options.out}: {layout.size:,} parameters in {len(layout.tensors)} tensors"


def write_bundle(
    function: str,
    name: str,
    input: TensorSpec,
    target: TensorSpec | None,
    batch_size: int,
    num_classes: int,
    metric: Metric,
    folder: Path,
) -> BundleManifest:
    """Call a "module:function" in the working directory, and write the parameters it returns as a bundle.

    Raises ``ConfigError`` if the function fails or does not return parameters, and ``StorageError`` if
    writing fails.
    """
    arrays = _arrays(function)
    try:
        layout = Layout.of((name, array.shape, _role(name)) for name, array in arrays.items())
    except CodecError as exc:
        raise ConfigError(function, str(exc), "tensors that a layout can hold") from exc
    manifest = BundleManifest(
        format=FORMAT,
        name=name,
        layout=layout,
        batch_size=batch_size,
        input=input,
        target=target,
        num_classes=num_classes,
        uses_batch_statistics=bool(layout.statistics),
        programs=(),
        verification=None,
        loss=Loss() if num_classes else Loss(_OWN_LOSS),
        metric=metric,
    )
    save(folder, Bundle(manifest, {}), layout.flatten(arrays))
    return manifest


def _arrays(function: str) -> dict[str, NDArray[np.float32]]:
    """Return the initial parameters by name. Arrays in a list are named after their index."""
    expected = "a list or a dict of arrays"
    initial = imported(function, Path(), "function")
    try:
        with importable(Path()):
            found: object = initial()
    except (Exception, SystemExit) as exc:
        raise ConfigError(function, f"{type(exc).__name__}: {exc}", expected) from exc
    if isinstance(found, list | tuple):
        values = cast(Sequence[object], found)
        return {str(i): _array(function, str(i), value) for i, value in enumerate(values)}
    if not isinstance(found, Mapping):
        raise ConfigError(function, type(found).__name__, expected)
    named = cast(Mapping[object, object], found)
    return {str(key): _array(function, str(key), value) for key, value in named.items()}


def _array(function: str, name: str, value: object) -> NDArray[np.float32]:
    try:
        array = np.asarray(value)
    except Exception as exc:  # such as ragged lists, or another library's tensors
        raise ConfigError(
            f"{function}: {name}", f"{type(exc).__name__}: {exc}", "an array"
        ) from exc
    if array.dtype.kind != "f":
        raise ConfigError(f"{function}: {name}", str(array.dtype), "floating-point numbers")
    with np.errstate(over="ignore"):  # values out of range become inf, which is refused below
        single = array.astype(np.float32)
    if not np.isfinite(single).all():
        raise ConfigError(f"{function}: {name}", "NaN or inf", "finite numbers, as float32")
    return single


def _role(name: str) -> Role:
    return Role.STATISTIC if name.rpartition(".")[2] in _STATISTICS else Role.PARAMETER
