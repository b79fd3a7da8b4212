"""A setting of our own for models of several widths, in which all devices take part.

The notes on SubFLOT have 20 devices that all take part and rates 0, 1/4, 1/2 and 3/4; their learning rate
of .001 needs hundreds of rounds, FedOBP's (.01, momentum 0.7) does not. The seed decides which images, and
who holds them.
"""

from dataclasses import dataclass

from tools.reproduce.partial import PartialSetting, share_out
from tools.reproduce.setting import Streams, numpy_shuffles

from sedge_cloud.rounds.cohort import draw_cohort
from sedge_emulate.config import ModelConfig
from sedge_emulate.data.split import Indices

DEVICES = 20
DROPPED = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True)
class SizedSetting(PartialSetting):
    """20,000 images of Fashion-MNIST, Dir(``alpha``) over 20 devices, and the model in four widths."""

    devices = DEVICES
    checkpoint = 10
    model = ModelConfig(batch_size=32, widths=DROPPED)

    def parts(self, targets: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        """Each device's images to train and to test on, drawn from all."""
        return share_out(targets, DEVICES, self.alpha, seed)

    def streams(self, seed: int, rounds: int) -> Streams:
        """Everything from the run's own seed."""
        return Streams(numpy_shuffles, draw_cohort)
