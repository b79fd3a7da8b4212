"""``sedge-export show``: describes a bundle's contents and measured errors in a few lines."""

from itertools import groupby
from pathlib import Path

from sedge_protocol.wire.bundle import BundleManifest, Program, Verification
from sedge_protocol.wire.objective import Loss
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Work

QUARTERS = (0.25, 0.5, 0.75)
SHOWN = 4  # how many of an axis's tensors ``show`` names


def summary(manifest: BundleManifest, folder: Path) -> str:
    """Describe a bundle's contents and measured errors in a few lines."""
    layout = manifest.layout
    rows = [
        ("bundle", f"{manifest.name} in {folder}"),
        ("parameters", f"{layout.size:,} in {len(layout.tensors)} tensors"),
        ("frozen", _frozen(manifest)),
        *_precision_rows(manifest.verification),
        ("statistics", ", ".join(layout.statistics) or "none"),
        ("random numbers", f"{manifest.noise:,} in a step" if manifest.noise else "none"),
        ("input", _input(manifest)),
        ("target", _target(manifest)),
        ("loss", _loss_text(manifest.loss)),
        ("metric", f"{manifest.metric.name}, {manifest.metric.better} is better"),
        ("batch size", f"{manifest.batch_size}"),
        *_axes_rows(manifest),
        *_program_rows(manifest, folder),
        *_verification_rows(manifest.verification),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def _input(manifest: BundleManifest) -> str:
    whole = f"{manifest.input.dtype} {_shape(manifest.input.shape)}"
    parts = [f"{part.name} {part.dtype} {_shape(part.shape)}" for part in manifest.parts]
    below = f", below {manifest.vocabulary:,}" if manifest.vocabulary else ""
    return f"{whole}: {', '.join(parts)}" if parts else f"{whole}{below}"


def _target(manifest: BundleManifest) -> str:
    target = manifest.target
    if target is None:
        return "the input"
    names = f": {', '.join(manifest.labels)}" if manifest.labels else ""
    classes = f", {manifest.num_classes} classes{names}" if manifest.num_classes else ""
    return f"{target.dtype} {_shape(target.shape)}{classes}"


def _loss_text(loss: Loss) -> str:
    smoothing = f", label smoothing {loss.label_smoothing:g}" if loss.label_smoothing else ""
    weights = ", ".join(f"{weight:g}" for weight in loss.class_weights)
    return f"{loss.name}{smoothing}{weights and f', class weights {weights}'}"


def _frozen(manifest: BundleManifest) -> str:
    if manifest.frozen is None:
        return "none"
    layout = manifest.frozen.layout
    size = f"{manifest.frozen.blob.size / 1e6:.1f} MB, which each device fetches once"
    return f"{layout.size:,} in {len(layout.tensors)} tensors, {size}"


def _precision_rows(checked: Verification | None) -> list[tuple[str, str]]:
    return [("frozen, rounded", checked.frozen)] if checked is not None and checked.frozen else []


def _verification_rows(checked: Verification | None) -> list[tuple[str, str]]:
    if checked is None:
        return [("programs", "none: devices train with their own code")]
    errors = f"step {checked.step_error:.1e}, epoch {checked.epoch_error:.1e}"
    allowed = f"tolerance {checked.tolerance:.1e}, torch in float32 {checked.torch_error:.1e}"
    return [
        ("against torch", f"{errors}; {allowed}"),
        ("kinks met", ", ".join(checked.kinks) or "none"),
        ("verified with", ", ".join(f"{k} {v}" for k, v in sorted(checked.versions.items()))),
    ]


def _program_rows(manifest: BundleManifest, folder: Path) -> list[tuple[str, str]]:
    """Return rows with each file's programs, its size, and the cost of training with them."""
    rows: list[tuple[str, str]] = []
    for file, group in groupby(manifest.programs, lambda program: program.file):
        programs = list(group)
        names = ", ".join(program.name for program in programs)
        rows.append((f"{names} ({programs[0].backend})", f"{_size(folder / file):,} bytes"))
        for program in programs:
            if program.name == "gradient":
                rows += _cost_rows(manifest, program)
    return rows


def _cost_rows(manifest: BundleManifest, program: Program) -> list[tuple[str, str]]:
    """Return rows with the cost of training on a device: per step, and per job if its memory is known."""
    rows = [("a step", f"{program.multiply_adds / 1e6:,.1f} million multiply-adds")]
    sgd, adam = (
        manifest.memory_mb([program.backend], Work().vectors(Training(optimizer=name)))
        for name in ("sgd", "adam")
    )
    if not sgd:
        return rows
    return [*rows, ("a job", f"{sgd} MB of a device's memory with SGD, {adam} MB with Adam")]


def _axes_rows(manifest: BundleManifest) -> list[tuple[str, str]]:
    """Return rows with the axes and their tensors, and with the sizes of narrower forms."""
    axes, layout = manifest.axes, manifest.layout
    if axes is None:
        return [("axes", "none: it has a single width")]
    rows: list[tuple[str, str]] = []
    for number, (channels, places) in enumerate(zip(axes.channels, axes.used, strict=True)):
        names = list(dict.fromkeys(layout.tensors[tensor].name for tensor, _ in places))
        shown = ", ".join(names[:SHOWN]) + (" and more" if len(names) > SHOWN else "")
        rows.append((f"axis {number}", f"{channels} channels of {len(names)} tensors: {shown}"))
    if manifest.dropped:
        return [("left out", f"{manifest.dropped:g} of the whole model's channels"), *rows]
    sizes = [(dropped, axes.layout(layout, axes.narrowed(dropped)).size) for dropped in QUARTERS]
    return [
        *rows,
        *((f"narrower by {dropped:g}", f"{size:,} parameters") for dropped, size in sizes),
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _size(file: Path) -> int:
    return file.stat().st_size
