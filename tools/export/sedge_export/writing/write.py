"""The last stage: assembles the bundle with its manifest, and writes it to its folder."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from sedge_edge.training.examples import Examples
from sedge_export.stages import Inspected, Lowered, Traced
from sedge_export.writing.step_memory import with_memory
from sedge_protocol.errors import ExportError
from sedge_protocol.wire.bundle import (
    FORMAT,
    MAX_BUNDLE_BYTES,
    Bundle,
    BundleManifest,
    Program,
    TensorSpec,
    Verification,
    save,
)
from sedge_protocol.wire.frozen import frozen_data


def write(
    folder: Path, inspected: Inspected, traced: Traced, lowered: Lowered, verification: Verification,
    *, name: str, labels: Sequence[str], measure: bool,
) -> BundleManifest:  # fmt: skip
    """Write the bundle. Returns its manifest.

    With ``measure``, the memory of a training step is measured in each runtime. Raises ``ExportError``
    if the programs are too large to transfer, or if a step cannot be measured.
    """
    network = inspected.subject.network
    files = {file.name: file.data for programs in lowered.values() for file in programs.values()}
    if sum(map(len, files.values())) > MAX_BUNDLE_BYTES:
        raise ExportError(f"bundle {name!r}: programs hold more than {MAX_BUNDLE_BYTES} bytes")
    manifest = _manifest(inspected, _programs(lowered, traced), verification, name, labels)
    bundle = Bundle(manifest, files, network.frozen_values)
    if measure:
        bundle = with_memory(bundle, network.theta, _two_batches(inspected))
    save(folder, bundle, network.theta)
    return bundle.manifest


def _two_batches(inspected: Inspected) -> Examples:
    """Return two batches of rows that the programs were verified on: the user's own rows, if any."""
    verified = inspected.sources[-1]
    rows = torch.arange(2 * len(inspected.subject.x)) % len(verified.x)
    return Examples(verified.x[rows].numpy(), verified.y[rows].numpy())


def _programs(lowered: Lowered, traced: Traced) -> tuple[Program, ...]:
    return tuple(
        Program(
            key,
            backend,
            file.name,
            hashlib.sha256(file.data).hexdigest(),
            multiply_adds=traced.multiply_adds[key],
        )
        for backend, files in lowered.items()
        for key, file in files.items()
    )


def _manifest(
    inspected: Inspected, programs: tuple[Program, ...], verification: Verification, name: str,
    labels: Sequence[str],
) -> BundleManifest:  # fmt: skip
    subject, network = inspected.subject, inspected.subject.network
    x, layout, values = subject.x, network.frozen, network.frozen_values
    return BundleManifest(
        format=FORMAT,
        name=name,
        layout=network.layout,
        batch_size=len(x),
        input=TensorSpec("int64" if x.dtype == torch.int64 else "float32", tuple(x.shape[1:])),
        target=inspected.target,
        num_classes=subject.num_classes,
        labels=tuple(labels),
        parts=subject.parts,
        vocabulary=inspected.vocabulary,
        frozen=None if layout is None or values is None else frozen_data(layout, values),
        noise=inspected.noise,
        loss=subject.choice.loss,
        metric=subject.choice.metric,
        uses_batch_statistics=network.uses_batch_statistics,
        programs=programs,
        verification=verification,
        axes=inspected.axes,
        dropped=inspected.dropped,
        guide=inspected.guide,
    )
