"""Measures a run with several model widths: each width's devices, their costs and their accuracies."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import cast

from tools.reproduce.outcome import Size

from sedge_cloud.runs.run import Run
from sedge_emulate.emulation import SharedSetup
from sedge_emulate.model import ModelSource
from sedge_emulate.virtual.fleet import VirtualFleet
from sedge_emulate.watch import Watch


def sizes(shared: SharedSetup, fleet: VirtualFleet, watch: Watch) -> tuple[Size, ...]:
    """Return the widths at which devices trained, full width first; () if all trained at full width."""
    run = Run(fleet.store.runs()[0], fleet.store)
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(len(shared.shares)):
        row = fleet.store.client_model(run.name, shared.shares.name(number))
        if row is not None:
            members[row.width].append(number)
    if set(members) <= {0}:
        return ()
    last = {device.device: device for device in watch.summaries[-1].devices}
    found: list[Size] = []
    for width, numbers in sorted(members.items()):
        seen = [fleet.seen(number) for number in numbers]
        ends = [last[name] for name in map(shared.shares.name, numbers) if name in last]
        dropped = run.widths[width].dropped
        found.append(
            Size(
                dropped=dropped,
                devices=len(numbers),
                parameters=run.layout(width).size,
                multiply_adds=multiply_adds(shared.source, dropped),
                bytes_up=_moved(seen, "up"),
                bytes_down=_moved(seen, "down"),
                before=round(mean(end.before for end in ends), 6) if ends else 0.0,
                after=round(mean(end.after for end in ends), 6) if ends else 0.0,
            )
        )
    return tuple(found)


def multiply_adds(source: ModelSource, dropped: float) -> int:
    """Return the multiply-adds of convolutions and matrix products in one example's forward pass.

    torch counts them. A training step takes about three times as many.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module = source.build(0, dropped).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.zeros(1, *source.shape, dtype=getattr(torch, source.dtype)))
    return int(counter.get_total_flops()) // 2


def _moved(seen: Sequence[Mapping[str, object]], way: str) -> int:
    """Return the average number of bytes per device over the whole run."""
    kinds = ("payload", "overhead", "resent")
    return round(mean(sum(cast(int, one[f"{kind}_{way}"]) for kind in kinds) for one in seen))
