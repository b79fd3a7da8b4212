"""The sizes of all stages: ``full`` on a GPU, ``small`` on a CPU, ``tiny`` in tests.

Does not import torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fleet:
    """The size of an emulation: number of devices, share that trains in a round, and number of rounds."""

    devices: int
    fraction: float
    rounds: int


@dataclass(frozen=True)
class Size:
    """The sizes of a run.

    A rate is measured for ``seconds``; the other fields are used only by certain stages.
    """

    matrix: int
    copied_bytes: int
    models: tuple[str, ...]
    rows: int
    epochs: int
    batch_size: int
    loop_devices: int
    widths: tuple[int, ...]
    seconds: float
    processes: tuple[int, ...]
    dataset: str
    thousand: Fleet
    workers: tuple[int, ...]
    fleets: tuple[Fleet, ...]


_MODELS = ("avgcnn", "resnet8", "conv1d", "mlp")
FULL, SMALL, TINY = "full", "small", "tiny"
SIZES = {
    FULL: Size(
        matrix=8192,
        copied_bytes=2**31,
        models=_MODELS,
        rows=64,
        epochs=5,
        batch_size=32,
        loop_devices=16,
        widths=(128, 512, 32, 8),
        seconds=0.4,
        processes=(4, 2, 8),
        dataset="fashion-mnist",
        thousand=Fleet(1000, 0.1, 20),
        workers=(4, 1),
        fleets=(Fleet(10_000, 0.1, 2), Fleet(10_000, 1.0, 2)),
    ),
    SMALL: Size(
        matrix=1024,
        copied_bytes=2**26,
        models=_MODELS,
        rows=32,
        epochs=1,
        batch_size=32,
        loop_devices=2,
        widths=(8, 2),
        seconds=0.2,
        processes=(2,),
        dataset="digits",
        thousand=Fleet(50, 0.2, 2),
        workers=(2,),
        fleets=(Fleet(100, 1.0, 2),),
    ),
    TINY: Size(
        matrix=64,
        copied_bytes=2**16,
        models=("mlp", "conv1d"),
        rows=4,
        epochs=1,
        batch_size=2,
        loop_devices=2,
        widths=(2,),
        seconds=0.0,
        processes=(2,),
        dataset="digits",
        thousand=Fleet(4, 0.5, 1),
        workers=(1,),
        fleets=(Fleet(4, 1.0, 1),),
    ),
}
