"""The setup of a worker process, and the trainer that it opens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sedge_edge.training.batches import Permutations, permutations
from sedge_edge.training.examples import Inputs
from sedge_emulate.cache import FolderCache
from sedge_emulate.config import TrainerConfig
from sedge_emulate.model import ModelSource
from sedge_emulate.training.tasks import FleetTrainer
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import Bundle

# Packages whose version may change a job's results.
VERSIONS = ("sedge-fl", "numpy", "torch", "onnxruntime")


@dataclass(frozen=True)
class WorkerSetup:
    """The settings with which every worker is started: where its data and bundle are, and how to train.

    ``shuffles`` replaces the order of a device's examples, to reproduce a published run. ``processes`` is
    the number of workers that share a GPU. ``cache`` is the folder that records which checks trainers
    have passed; None means no cache.
    """

    data: Path
    bundle: Path
    model: ModelSource
    trainer: TrainerConfig
    shuffles: Permutations = permutations
    processes: int = 1
    cache: Path | None = None


def trainer_for(
    setup: WorkerSetup,
    bundle: Bundle,
    sample: Inputs,
    note: Callable[[str], object],
    cache: FolderCache | None = None,
) -> FleetTrainer:
    """Open the trainer that the fleet file asks for. ``sample`` (N, ...) are some inputs from the data.

    ``note`` is called with a line if the GPU could not be used. A CPU trainer that has passed its checks,
    according to ``cache`` (by default the setup's), is not checked again.
    """
    if ":" in setup.trainer.backend:
        return _function_trainer(setup, bundle)
    import torch

    from sedge_edge.backends.flat_module import place_frozen
    from sedge_emulate.training.choice import open_trainer
    from sedge_emulate.training.fingerprint import fingerprint
    from sedge_export.subject.objective import objective_of

    torch.set_num_threads(1)
    manifest = bundle.manifest
    module = setup.model.build(0, manifest.dropped)
    place_frozen(module, bundle)
    own = setup.model.own_loss(), setup.model.own_metric(), setup.model.guided()
    options = msgspec.structs.asdict(setup.trainer)
    if cache is None and setup.cache is not None:
        cache = FolderCache(setup.cache, note)

    def taken() -> bytes | None:
        if cache is None or setup.trainer.device != "cpu":
            return None
        recipe = msgspec.json.encode((setup.trainer, manifest)), setup.shuffles, own
        return fingerprint(module, "check", *recipe, str(sample.dtype), sample.tobytes())

    key = taken()
    checked = cache is not None and key is not None and cache.find(key) is not None
    trainer = open_trainer(
        module,
        objective_of(manifest, *own),
        manifest.batch_size,
        manifest.input,
        manifest.target,
        name=options.pop("backend"),
        **options,
        processes=setup.processes,
        note=note,
        bundle=bundle,
        shuffles=setup.shuffles,
        parts=manifest.parts,
        sample=sample,
        checked=checked,
    )
    if cache is not None and key is not None and not checked:
        cache.keep(key, trainer.name.encode(), taken())
    return trainer


def _function_trainer(setup: WorkerSetup, bundle: Bundle) -> FleetTrainer:
    """Open the user's trainer "module:function".

    It has no options, so values other than the defaults are refused.
    """
    from sedge_emulate.training.function import FunctionFleet

    usual = TrainerConfig(setup.trainer.backend)
    for key in ("precision", "tf32", "graphs", "convolutions"):
        value, expected = getattr(setup.trainer, key), getattr(usual, key)
        if value != expected:
            why = f"{expected} for a function of your own"
            raise ConfigError(f"trainer.{key}", value, why)
    return FunctionFleet(bundle, setup.trainer.backend, setup.model.base)
