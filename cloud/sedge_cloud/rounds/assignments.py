"""Checks and completes a strategy's assignments, so that no device would have to refuse its order.

n is the number of elements in the device's form of the model, k the number in a patch.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from sedge_cloud.runs.run import Run, order_seed
from sedge_cloud.strategy import Assignment
from sedge_protocol.errors import CodecError, StrategyError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.arrays import check_exchange, check_guided, pack_array
from sedge_protocol.wire.work import PatchChoice, Work

# The round number whose seed determines which examples a device holds out. No order uses it.
HOLDOUT_ROUND = 0


def check_assignment(run: Run, device: str, assignment: Assignment) -> Work:
    """Return an assignment's work, completed with defaults.

    Raises ``StrategyError`` for anything that a device would have to refuse.
    """
    where, work = f"{run.config.strategy}, {device}", assignment.work
    if not 0 <= assignment.width < len(run.widths):
        raise StrategyError(
            f"{where}: width {assignment.width}, but the run has {len(run.widths)} bundles"
        )
    layout = run.layout(assignment.width)
    if assignment.width and assignment.start is None:
        raise StrategyError(f"{where}: width {assignment.width} without its own start")
    patch = assignment.patch
    for name in ("start", "correction"):
        theta: Theta | None = getattr(assignment, name)
        if theta is not None and (theta.shape != (layout.size,) or theta.dtype != np.float32):
            expected = f"float32 ({layout.size},)"
            raise StrategyError(f"{where}: {name} {theta.dtype} {theta.shape}, expected {expected}")
    if patch is not None and patch.size != layout.size:
        raise StrategyError(f"{where}: a patch of n={patch.size}, expected {layout.size}")
    if work.scoring is not None and (patch is not None or work.own_model is not None):
        raise StrategyError(
            f"{where}: device scoring cannot be combined with a patch or an own model"
        )
    if assignment.correction is not None and work.own_model is not None and work.own_model.mixes:
        raise StrategyError(f"{where}: a correction cannot be combined with a mixture")
    if work.arrays:
        raise StrategyError(f"{where}: work.arrays is set: use Assignment.send instead")
    average = (work.training or run.config.training).average
    if average and work.own_model is not None and work.own_model.mixes:
        raise StrategyError(f"{where}: training.average with a mixture, expected 0")
    _require_choice(where, assignment)
    if work.blend is not None and (work.scoring or work.own_model or assignment.holdout):
        expected = "no device scoring, own model or holdout together with it"
        raise StrategyError(f"{where}: a blend, expected {expected}")
    _require_names(where, layout, work)
    stays = () if assignment.shares_statistics else layout.statistics
    keep = (*stays, *(name for name in work.keep if name not in stays))
    work = msgspec.structs.replace(
        work,
        keep=keep,
        choice=_choice(run, device, assignment),
        arrays={name: pack_array(array) for name, array in assignment.send.items()},
    )
    try:  # Decoding checks ranges, and turns a TrainingConfig into a plain Training
        work = msgspec.msgpack.decode(msgspec.msgpack.encode(work), type=Work)
        check_exchange(work)
        check_guided(work, run.manifests[assignment.width].guide)
        return work
    except (ValueError, CodecError) as exc:  # msgspec raises ValueErrors
        raise StrategyError(f"{where}: {exc}") from exc


def _require_choice(where: str, assignment: Assignment) -> None:
    """Raise ``StrategyError`` if the strategy sets ``choice`` itself, or a holdout that cannot be used."""
    if assignment.work.choice is not None:
        raise StrategyError(f"{where}: work.choice is set, but it follows from the holdout")
    alone = assignment.work.scoring is None and assignment.work.own_model is None
    if assignment.holdout and not alone:
        raise StrategyError(
            f"{where}: a holdout cannot be combined with device scoring or an own model"
        )


def _choice(run: Run, device: str, assignment: Assignment) -> PatchChoice | None:
    """Return how a device chooses where to start from, or None if it has no holdout.

    It holds out the same examples in every round of a run.
    """
    if not assignment.holdout:
        return None
    return PatchChoice(assignment.holdout, order_seed(run.config.seed, HOLDOUT_ROUND, device))


def _require_names(where: str, layout: Layout, work: Work) -> None:
    named: list[Iterable[str]] = [work.keep, *(phase.freeze for phase in work.trainings)]
    named += [work.scoring.tensors] if work.scoring else []
    named += [(work.blend.prior,)] if work.blend and work.blend.prior else []
    for name in {name for names in named for name in names}:
        if name not in layout.by_name:
            raise StrategyError(f"{where}: no tensor named {name!r}")
