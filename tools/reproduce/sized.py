"""Sedge's own setting for models of several widths, in which all devices take part.

SubFLOT's paper has 20 devices, which all take part, and rates 0, 1/4, 1/2 and 3/4. Its learning rate of
.001 would need hundreds of rounds, so FedOBP's (.01, momentum 0.7) is used. The seed determines which
images are used, and which device gets them.
"""

from tools.reproduce.partial import PartialSetting
from tools.reproduce.setting import Setting

from sedge_emulate.config import ModelConfig

DROPPED = (0.0, 0.25, 0.5, 0.75)


class SizedSetting(PartialSetting):
    """20,000 images of Fashion-MNIST, Dir(``alpha``) over 20 devices, and the model in four widths."""

    devices = 20
    checkpoint = 10
    model = ModelConfig(batch_size=32, widths=DROPPED)
    streams = Setting.streams
