"""Checks that a run's bundles, one per model width, belong together, and reports what devices need."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from sedge_protocol.errors import ConfigError
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.bundle import BundleManifest, load
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Work


def costs(folder: Path, training: Training) -> Iterator[str]:
    """Yield a line per runtime with the memory and multiply-adds that a device needs, if known."""
    with as_caller():
        manifest = load(folder)[0].manifest
    for program in manifest.programs:
        needed = manifest.memory_mb([program.backend], Work().vectors(training))
        if program.name == "gradient" and needed:
            step = f"{program.multiply_adds / 1e6:,.1f} million multiply-adds per step"
            yield f"{folder} in {program.backend}: a device needs {needed} MB; {step}"


def require_forms(whole: BundleManifest, narrower: Sequence[BundleManifest]) -> None:
    """Raise ``ConfigError`` unless every manifest in ``narrower`` describes ``whole`` with fewer channels.

    They must have the same data and backends as ``whole``, and the same tensors with the same axes. The
    number of channels in each must match its ``dropped``, and each ``dropped`` must exceed the previous
    one.
    """
    if narrower and whole.dropped:
        raise ConfigError(
            "bundle", f"first with dropped {whole.dropped:g}", "the whole model first"
        )
    last = 0.0
    for number, form in enumerate(narrower, start=2):
        key = f"bundle {number}"
        for name in ("input", "parts", "target", "num_classes", "loss", "metric"):
            expected, actual = getattr(whole, name), getattr(form, name)
            if actual != expected:
                raise ConfigError(key, f"{name} {actual}", f"{expected}, as in the first")
        if form.frozen != whole.frozen:
            raise ConfigError(key, "different frozen data", "the same frozen data as in the first")
        if _backends(form) != _backends(whole):
            raise ConfigError(key, _backends(form), f"programs for {_backends(whole)}")
        if form.dropped <= last:
            raise ConfigError(key, f"dropped {form.dropped:g}", f"above {last:g}")
        if whole.axes is None or form.axes is None:
            raise ConfigError(key, "no axes", "bundles that were exported with their widths")
        if form.axes != whole.axes.narrowed(form.dropped):
            expected = f"{whole.axes.narrowed(form.dropped).channels} along the first one's axes"
            raise ConfigError(key, f"channels {form.axes.channels}", expected)
        if form.layout != whole.axes.layout(whole.layout, form.axes):
            expected = "the first one's tensors, with fewer channels and no other difference"
            raise ConfigError(key, "different tensors", expected)
        last = form.dropped


def _backends(manifest: BundleManifest) -> list[str]:
    return sorted({program.backend for program in manifest.programs})
