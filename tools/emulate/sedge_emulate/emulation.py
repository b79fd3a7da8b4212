"""Runs an emulation from the fleet file to its results: data, model, workers, then each strategy in turn.

    out/bundle    the exported model
    out/models    each strategy's last global model
    out/join      files for real devices
    out/state     state that --resume continues from

``out/state`` is deleted once every strategy has finished. A strategy that was interrupted resumes from
its folder in ``runs``. A model file is n float32 numbers, little endian.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.privacy import PrivacyBudget, first_budget
from sedge_edge.training.examples import Examples, fitting
from sedge_emulate.attack import NOBODY, Attack
from sedge_emulate.cache import user_cache
from sedge_emulate.config import EmulationConfig, StrategyConfig
from sedge_emulate.data.datasets import Dataset
from sedge_emulate.data.shares import Shares, share_out
from sedge_emulate.hello import PROGRAMS, announced
from sedge_emulate.model import ModelSource, Sample, code_hash
from sedge_emulate.result import ModelSize, StrategyResult, write_whole
from sedge_emulate.workers.preparation import Preparation, prepare
from sedge_emulate.workers.processes import in_process
from sedge_emulate.workers.setup import VERSIONS, WorkerSetup
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.objective import ACCURACY, Metric

# The file that marks ``out/state`` as an emulation's, so that no other folder is deleted.
OWN = "emulation"
# A marker file that says that the bundle was taken from the cache.
CACHED = "from-cache"


@dataclass(frozen=True)
class StrategyRun:
    """One strategy's run, and the folder for its state, which may be nonempty if ``resumed`` is True.

    ``narrower`` are the bundles of the model's versions with fewer channels. ``hello`` is what devices
    announce.
    """

    title: str
    config: RunConfig
    folder: Path
    resumed: bool
    narrower: tuple[Path, ...] = ()
    attack: Attack = NOBODY
    hello: Hello = PROGRAMS


@dataclass(frozen=True)
class SharedSetup:
    """What all strategies in an emulation share.

    Its memory use does not grow with the number of devices.
    """

    config: EmulationConfig
    dataset_name: str
    split: str
    shares: Shares
    model: ModelSize
    source: ModelSource
    out: Path
    metric: Metric = ACCURACY
    data_sha256: str = ""

    @property
    def bundle(self) -> Path:
        """The folder of the exported model."""
        return self.out / "bundle"

    @property
    def narrower(self) -> tuple[Path, ...]:
        """The folders of the exported versions of the model with fewer channels."""
        return narrower(self.config, self.out)

    @property
    def setup(self) -> WorkerSetup:
        """The setup that worker processes start with."""
        return worker_setup(self.config, self.source, self.out)

    @property
    def workers(self) -> int:
        """The number of processes that train."""
        return num_workers(self.config)

    def name(self, trainer: str) -> bytes:
        """Return the digest (32 bytes) of data, model, trainer and versions that jobs are named after."""
        bundle, theta = load(self.bundle)
        digest = hashlib.sha256()
        for part in (
            trainer.encode(),
            msgspec.json.encode(self.config.trainer),
            code_hash(self.config.trainer.backend, self.source.base).encode(),
            msgspec.json.encode({package: version(package) for package in VERSIONS}),
            bundle.manifest.layout.hash,
            msgspec.json.encode((bundle.manifest.loss, bundle.manifest.metric)),
            b"" if bundle.frozen is None else bundle.frozen.tobytes(),
            theta.tobytes(),
            self.shares.train.tobytes(),
            self.shares.train_ends.tobytes(),
            self.shares.test.tobytes(),
            self.shares.test_ends.tobytes(),
            self.shares.central.tobytes(),
            *(load(folder)[0].manifest.layout.hash for folder in self.narrower),
        ):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()


def num_workers(config: EmulationConfig) -> int:
    """Return the configured number of training processes, by default one per processor."""
    return config.workers or os.cpu_count() or 1


def worker_setup(config: EmulationConfig, source: ModelSource, out: Path) -> WorkerSetup:
    """Return the setup that worker processes need for the emulation in ``out``."""
    data, processes = out / "state" / "data", num_workers(config)
    return WorkerSetup(
        data, out / "bundle", source, config.trainer, processes=processes, cache=user_cache()
    )


def set_up(
    config: EmulationConfig,
    base: Path,
    out: Path,
    resume: bool,
    note: Callable[[str], None],
    fresh: bool = False,
) -> SharedSetup:
    """Split the data, map it from disk and export the model. With ``resume``, earlier results are reused.

    With ``fresh``, nothing is taken from the user's cache. Raises ``ConfigError`` if ``resume`` is given
    and the fleet or model differs from the one in ``out``, if ``out`` holds foreign files, if two labels
    lead to the same file name, or if real devices join and there are several strategies.
    """
    if config.real and len(config.strategies) > 1:
        expected = (
            "one strategy if real devices join, as they belong to one fleet; choose it with --only"
        )
        raise ConfigError("strategies", len(config.strategies), expected)
    _require_names(config)
    state = out / "state"
    mark = state / "fleet.json"
    _require_own(out)
    dataset, shares = share_out(config.data, config.devices, config.seed, base)
    source = ModelSource.of(config.model, dataset, base)
    code, content = source.code, dataset.sha256
    trainer = code_hash(config.trainer.backend, base)
    described = msgspec.json.encode(
        {
            **_what_matters(config),
            "model's code": code,
            "trainer's code": trainer,
            "data's content": content,
        }
    )
    if resume:
        _require_same(mark, described)
    else:
        _clear(out)
    split = described_split(config, dataset, len(shares.central))
    note(f"{split}; link: {config.link}")
    for text in dataset.notes:
        note(f"{dataset.name}: {text}")
    if not mark.exists():
        shares.save(state / "data")
        prepared = export_forms(worker_setup(config, source, out), dataset, config, fresh)
        for text in prepared.notes:
            note(text)
        if prepared.from_cache:
            (state / CACHED).touch()
        write_whole(described, mark)
    manifest = load(out / "bundle")[0].manifest
    size = manifest.layout.size
    cached = (state / CACHED).exists()
    model = ModelSize(name=source.name, parameters=size, dense_bytes=4 * size, from_cache=cached)
    frozen = "" if manifest.frozen is None else f" and {manifest.frozen.layout.size:,} frozen ones"
    when = " earlier (from the cache)" if cached else ""
    note(f"exported and verified{when}: {model.name}, {model.parameters:,} parameters{frozen}")
    mapped = Shares.open(state / "data")
    return SharedSetup(
        config, dataset.name, split, mapped, model, source, out, manifest.metric, dataset.sha256
    )


def described_split(config: EmulationConfig, dataset: Dataset, central: int = 0) -> str:
    """Return a line that describes the split, and the ``central`` examples that no device has."""
    data = config.data
    how = {
        "dirichlet": f"Dir({data.alpha:g})",
        "pathological": f"{data.classes_per_device} classes per device",
        "iid": "IID",
        "natural": "each with its own group of the data",
        "given": f"as {data.partition} says",
    }[data.split]
    count = len(dataset.targets) - central
    rest = f", and {central:,} to test all models on" if central else ""
    return f"{count:,} examples of {dataset.name} on {config.devices} devices, {how}{rest}"


def clear_away(shared: SharedSetup, strategies: Sequence[StrategyConfig]) -> None:
    """Delete the emulation's state if all ``strategies`` have results; otherwise keep all of it."""
    strategy_runs = (strategy_run_of(shared, strategy, resume=True) for strategy in strategies)
    if all(finished(shared, strategy_run) is not None for strategy_run in strategy_runs):
        shutil.rmtree(shared.out / "state", ignore_errors=True)


def unfinished(out: Path) -> bool:
    """Return True if the emulation in this folder was stopped early and has done work worth resuming."""
    state = out / "state"
    with translated("look into", out):
        done = any((state / name).is_dir() for name in ("runs", "finished"))
        return done and (state / "fleet.json").exists()


@contextmanager
def locked(out: Path) -> Generator[None]:
    """Lock the folder for this emulation. Raises ``StorageError`` if another one holds the lock."""
    with lock_folder(out):
        yield


def export_forms(
    setup: WorkerSetup, dataset: Dataset, config: EmulationConfig, fresh: bool = False
) -> Preparation:
    """Export the model in each of its widths, in a separate process.

    Raises ``DataError`` for data that every device would decline to train on.
    """
    source, folders = setup.model, (setup.bundle, *narrower(config, setup.bundle.parent))
    forms = list(zip(config.model.widths, folders, strict=True))
    sample = Sample.of(source, dataset)
    seed = config.seed if config.model.seed is None else config.model.seed
    prepared: Preparation = in_process(prepare, setup, sample, seed, forms, fresh)
    for folder in folders:
        manifest = load(folder)[0].manifest
        fitting(Examples(dataset.inputs, dataset.targets, source.parts), manifest)
    return prepared


def narrower(config: EmulationConfig, out: Path) -> tuple[Path, ...]:
    """Return the folders with the bundles of the model's versions with fewer channels."""
    return tuple(out / f"bundle-{dropped}" for dropped in config.model.widths[1:])


def slug(title: str) -> str:
    """Convert a title to a fleet id and folder name.

    Titles that are not ASCII get a digest to stay distinct.
    """
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
    if title.isascii():
        return name or "fleet"
    digest = hashlib.sha256(title.encode()).hexdigest()[:6]
    return f"{name[:33]}-{digest}".lstrip("-")


def finished(shared: SharedSetup, strategy_run: StrategyRun) -> StrategyResult | None:
    """Load the result of a strategy that finished before the emulation was interrupted, if any."""
    path = _result_path(shared, strategy_run)
    if not strategy_run.resumed or not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=StrategyResult)
    except (OSError, msgspec.MsgspecError) as exc:
        raise StorageError(f"{path}: {exc}; start with --fresh") from exc


def keep(
    shared: SharedSetup, strategy_run: StrategyRun, result: StrategyResult, theta: bytes
) -> None:
    """Save a finished strategy's result and last global model, and delete its state."""
    write_whole(theta, shared.out / "models" / f"{slug(strategy_run.title)}.bin")
    write_whole(msgspec.json.encode(result), _result_path(shared, strategy_run))
    shutil.rmtree(strategy_run.folder, ignore_errors=True)


def strategy_run_of(shared: SharedSetup, strategy: StrategyConfig, resume: bool) -> StrategyRun:
    """Return the run of one strategy and the folder of its state."""
    folder = shared.out / "state" / "runs" / slug(strategy.title)
    config = shared.config
    run = config.run(strategy)
    attack = Attack(config.attack_under(strategy), run.robust, config.devices)
    hello = announced(shared.config.trainer.backend, shared.source.base)
    return StrategyRun(strategy.title, run, folder, resume, shared.narrower, attack, hello)


def budget_of(run: RunConfig, devices: int) -> PrivacyBudget | None:
    """Return the privacy budget of a run on this many devices, or None if the run is not private.

    The secret is derived from the seed to make the emulation reproducible, so it is not really secret.
    """
    if run.privacy is None:
        return None
    secret = hashlib.sha256(f"privacy/{run.seed}".encode()).digest()
    return first_budget(run.privacy, run.fraction_train, run.num_rounds, devices, secret)


def _result_path(shared: SharedSetup, strategy_run: StrategyRun) -> Path:
    run = hashlib.sha256(
        msgspec.json.encode((strategy_run.config, strategy_run.attack))
    ).hexdigest()[:16]
    return shared.out / "state" / "finished" / f"{slug(strategy_run.title)}-{run}.json"


def _require_names(config: EmulationConfig) -> None:
    """Raise ``ConfigError`` if two strategies would write to the same file."""
    names = [slug(strategy.title) for strategy in config.strategies]
    for name, strategy in zip(names, config.strategies, strict=True):
        if names.count(name) > 1:
            expected = f"labels that give different file names; another one also gives {name!r}"
            raise ConfigError("strategies.label", strategy.title, expected)


def _what_matters(config: EmulationConfig) -> dict[str, object]:
    """Return the config without the settings that may change when an emulation is resumed."""
    kept = msgspec.structs.replace(
        config,
        workers=0,
        rounds=msgspec.structs.replace(config.rounds, num_rounds=1),
        strategies=config.strategies[:0],
    )
    described: dict[str, object] = msgspec.to_builtins(kept)
    return described


def _require_own(out: Path) -> None:
    """Raise ``ConfigError`` if ``out`` holds a state or a bundle that was not created by an emulation."""
    state = out / "state"
    with translated("look into", out):
        own = (state / OWN).exists() or (state / "fleet.json").exists()
        if state.exists() and not own and any(state.iterdir()):
            expected = "no such folder, or the state of an emulation"
            raise ConfigError("--out", str(state), expected)
        bundle = out / "bundle"
        if bundle.exists() and not (bundle / "manifest.json").exists() and any(bundle.iterdir()):
            raise ConfigError("--out", str(bundle), "no such folder, or a bundle")


def _clear(out: Path) -> None:
    """Delete the state and the bundles of an earlier emulation.

    The state that real devices have kept from it is deleted, too. The user's own files in the devices'
    folders stay.
    """
    state = out / "state"
    shutil.rmtree(state, ignore_errors=True)
    manifests = (*out.glob("bundle/manifest.json"), *out.glob("bundle-[0-9]*/manifest.json"))
    bundles = [manifest.parent for manifest in manifests]
    joined = [config.parent / "state" for config in out.glob("join/*/edge.toml")]
    for folder in (*bundles, *joined):
        shutil.rmtree(folder, ignore_errors=True)
    with translated("make folder", state):
        state.mkdir(parents=True)
        (state / OWN).touch()


def _require_same(mark: Path, described: bytes) -> None:
    with translated("read", mark):
        found = mark.read_bytes() if mark.exists() else b""
    if not found:
        raise ConfigError("--resume", str(mark.parent), "the state of an interrupted emulation")
    if found != described:
        old, new = msgspec.json.decode(found), msgspec.json.decode(described)
        changed = sorted(key for key in new if new[key] != old.get(key))
        raise ConfigError(
            "--resume", ", ".join(changed), f"settings unchanged since {mark.parent} was made"
        )
