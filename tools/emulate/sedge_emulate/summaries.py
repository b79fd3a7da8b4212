"""Converts the summary of a closed round to fields of the result."""

from collections.abc import Iterable

from sedge_cloud.store.records import Summary
from sedge_emulate.result import RoundResult, TensorShare, spread


def round_result(summary: Summary) -> RoundResult:
    """Convert a summary to a round's result, in which times and bytes are still 0."""
    before = [device.before for device in summary.devices]
    after = [device.after for device in summary.devices]
    return RoundResult(
        round=summary.round,
        before_mean=summary.before,
        before_worst=spread(before, summary.metric).worst_tenth if before else None,
        after_mean=summary.after,
        after_worst=spread(after, summary.metric).worst_tenth if after else None,
        train_loss=summary.train_loss,
        num_updates=len(summary.devices),
        late=0,
        seconds=0.0,
        bytes_up=0,
        bytes_down=0,
        personal={name: k / max(1, summary.cohort) for name, k in summary.personal.items()},
        distrusted=summary.distrusted,
    )


def personal_elements(summaries: Iterable[Summary]) -> int:
    """Return how many personal parameters devices were sent over all rounds."""
    return sum(sum(summary.personal.values()) for summary in summaries)


def personal_shares(summary: Summary) -> list[TensorShare]:
    """Return each tensor's share of the personal parameters that a round's devices were sent."""
    total = sum(summary.personal.values())
    return [
        TensorShare(tensor, count / max(1, summary.cohort), count / total)
        for tensor, count in summary.personal.items()
    ]
