"""Cohorts without the devices that miss the last rounds of training (``absent_rounds`` of their class).

Such a device is online all the time and takes part in evaluation rounds: one that misses every round of
training is a newcomer to the final evaluation; any other comes back to it after the missed rounds.
"""

from collections.abc import Mapping, Sequence

from sedge_cloud.rounds.cohort import Draw, draw_cohort
from sedge_cloud.runs.run import Run
from sedge_protocol.wire.messages import TRAIN


def cohort_without(absent_rounds: Mapping[str, int]) -> Draw:
    """Draws cohorts without the devices that miss at least the number of rounds left."""

    def draw(run: Run, number: int, task: str, able: Sequence[str]) -> list[str]:
        left = run.config.num_rounds - run.config.training_rounds(number)
        missing = {name for name, rounds in absent_rounds.items() if rounds > left}
        present = [name for name in able if name not in missing] if task == TRAIN else able
        return draw_cohort(run, number, task, present)

    return draw
