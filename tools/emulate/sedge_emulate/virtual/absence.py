"""Draws cohorts without the devices whose class misses the last training rounds (``absent_rounds``).

Such a device is online all the time and takes part in evaluation rounds. If it misses every training
round, it joins the final evaluation as a newcomer; otherwise it comes back for the final evaluation
after the rounds it missed.
"""

from collections.abc import Mapping, Sequence

from sedge_cloud.rounds.cohort import Draw, draw_cohort
from sedge_cloud.runs.run import Run
from sedge_protocol.wire.messages import TRAIN


def cohort_without(absent_rounds: Mapping[str, int]) -> Draw:
    """Return a function that draws cohorts without the devices that are absent in the round."""

    def draw(run: Run, number: int, task: str, able: Sequence[str]) -> list[str]:
        left = run.config.num_rounds - run.config.training_rounds(number)
        missing = {name for name, rounds in absent_rounds.items() if rounds > left}
        present = [name for name in able if name not in missing] if task == TRAIN else able
        return draw_cohort(run, number, task, present)

    return draw
