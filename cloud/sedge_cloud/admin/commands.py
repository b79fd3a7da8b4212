"""The commands ``run export``, ``resume``, ``delete``, ``prune``, ``backup``, ``restore``, ``store copy``.

``open_state`` and ``open_reader`` open the store for most commands of the other modules, too.
"""

import argparse
from contextlib import ExitStack, closing
from pathlib import Path

from sedge_cloud.admin import model_export
from sedge_cloud.admin.backup import back_up, restore
from sedge_cloud.admin.copying import copy_store
from sedge_cloud.admin.policies import read_policy
from sedge_cloud.admin.runs import delete_run, resume_run
from sedge_cloud.config import CloudConfig, load_cloud
from sedge_cloud.facts.reader import LAST_ROUNDS, Reader
from sedge_cloud.figures.numbers import size
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_store
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.command_line import Commands
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.host.privileges import act_as_owner, as_caller

FORMS = ("npz", "safetensors", "pt", "onnx")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_YEAR_S = 365 * 86_400


def add_run_commands(commands: Commands) -> None:
    """Add the commands for one run."""
    export = commands.add_parser(
        "export", help="write a run's models and history to files",
        examples=[
            "sedge-cloud run export first --out model.onnx",
            "sedge-cloud run export first --device pi-1 --out pi-1.npz",
            "sedge-cloud run export first --history history.csv",
        ],
    )  # fmt: skip
    export.add_argument("name")
    help_text = (
        "the global model as .npz, .safetensors, .pt or .onnx; with --device, that device's model"
    )
    export.add_argument("--out", type=Path, help=help_text)
    export.add_argument("--device", help="write this device's model to --out")
    export.add_argument(
        "--devices", type=Path, metavar="FOLDER", help="write every device's model to this folder"
    )
    help_text = "file format for --devices (default: npz)"
    export.add_argument("--form", choices=FORMS, default="npz", help=help_text)
    export.add_argument("--history", type=Path, help="one line per closed round, as .csv")
    export.set_defaults(call=_export)
    resume = commands.add_parser(
        "resume", help="continue a run that has ended",
        examples=["sedge-cloud run resume first --rounds 40"],
    )  # fmt: skip
    resume.add_argument("name")
    help_text = "training rounds in total (default: as before)"
    resume.add_argument("--rounds", type=int, help=help_text)
    help_text = "a policy from `run sign` that replaces the run's; devices need one for more rounds"
    resume.add_argument("--policy", type=Path, metavar="FILE", help=help_text)
    resume.set_defaults(call=_resume)
    delete = commands.add_parser(
        "delete", help="delete a run that has ended, with its models",
        examples=["sedge-cloud run delete first --dry-run"],
    )  # fmt: skip
    delete.add_argument("name")
    _add_dry_run(delete)
    delete.set_defaults(call=_delete)


def add_state_commands(commands: Commands) -> None:
    """Add the commands for the whole state folder."""
    pruning = commands.add_parser(
        "prune", help="delete whatever exceeds [keep] in cloud.toml",
        examples=["sedge-cloud prune --dry-run"],
    )  # fmt: skip
    _add_dry_run(pruning)
    pruning.set_defaults(call=_prune)
    saving = commands.add_parser(
        "backup", help="back up the state to one file, even while the service runs",
        examples=["sedge-cloud backup fleet.backup"],
    )  # fmt: skip
    saving.add_argument("file", type=Path)
    saving.set_defaults(call=_backup)
    loading = commands.add_parser(
        "restore", help="restore a backup into an empty state folder",
        examples=["sedge-cloud restore fleet.backup"],
    )  # fmt: skip
    loading.add_argument("file", type=Path)
    help_text = "discard the existing state; the service must not be running"
    loading.add_argument("--replace", action="store_true", help=help_text)
    loading.set_defaults(call=_restore)
    moving = commands.add_parser("store", help="move a fleet to another store", config="")
    verbs = moving.add_commands()
    copying = verbs.add_parser(
        "copy", help="copy all of a store into an empty one",
        examples=["sedge-cloud store copy old/cloud.toml new/cloud.toml"],
    )  # fmt: skip
    help_text = "the cloud.toml of the existing store; its coordinator must not be running"
    copying.add_argument("source", type=Path, metavar="FROM", help=help_text)
    copying.add_argument("target", type=Path, metavar="TO", help="the cloud.toml of the new store")
    copying.set_defaults(call=_copy)


def open_state(arguments: argparse.Namespace) -> tuple[CloudConfig, Store]:
    """Load the configuration and open its store, acting as the owner of the state folder.

    The store is closed when the command ends.
    """
    cloud = load_cloud(arguments.config)
    act_as_owner(Path(cloud.state_dir))
    return cloud, arguments.opened.enter_context(closing(open_store(cloud)))


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only report what would be deleted")


def _export(arguments: argparse.Namespace) -> int:
    name, out, folder, history = arguments.name, arguments.out, arguments.devices, arguments.history
    device: str = arguments.device or ""
    if device and out is None:
        raise ConfigError("--device", device, "--out as well")
    if out is None and folder is None and history is None:
        raise ConfigError("run export", name, "--out, --devices or --history")
    if history is not None and history.suffix != ".csv":
        raise ConfigError("--history", str(history), "a name that ends in .csv")
    _, store = open_state(arguments)
    if out is not None and device:
        _say(device, model_export.export_device(store, name, device, out))
    elif out is not None:
        model_export.export_global(store, name, out)
    if folder is not None:
        for one, kept in model_export.export_devices(store, name, folder, f".{arguments.form}"):
            _say(one, kept)
    if history is not None:
        model_export.export_history(store, name, history)
    return 0


def _say(device: str, kept: str) -> None:
    if kept:
        print(f"{device} {kept}")


def _resume(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    policy = b""
    if arguments.policy is not None:
        with as_caller():
            policy = read_policy(arguments.policy, cloud.trust, arguments.name)
    config = resume_run(store, arguments.name, arguments.rounds, policy)
    print(f"run {arguments.name} continues, up to {config.num_rounds} rounds of training")
    tell_if_silent(cloud, store)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    _, store = open_state(arguments)
    freed = delete_run(store, arguments.name, arguments.dry_run)
    if arguments.dry_run:
        print(f"run {arguments.name} would be deleted, and {size(freed)} of models with it")
        return 0
    print(f"run {arguments.name} is deleted, and {size(freed)} of models with it")
    print("Devices keep their data from this run, so give later runs a different name.")
    _free_space(store)
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    pruned = Garbage(store, cloud.keep).prune(arguments.dry_run)
    would = "would be " if arguments.dry_run else ""
    print(f"runs {would}deleted: {', '.join(pruned.runs) or 'none'}")
    print(f"per-device rows of old rounds {would}deleted: {pruned.rows}")
    if not arguments.dry_run:
        _free_space(store)
    return 0


def _free_space(store: Store) -> None:
    """Delete unreferenced blobs, or say that the service will do so if it is running."""
    with ExitStack() as alone:
        try:
            alone.enter_context(lock_folder(store.folder))
            alone.enter_context(store.serving())
        except StorageError:
            print(
                "The coordinator is running and will free the space within a minute or in its next round."
            )
            return
        freed = Garbage(store).collect()
        store.shrink()
    print(f"freed: {size(freed)}")


def _backup(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    for line in back_up(store, cloud.fleet, arguments.file):
        print(line)
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    for line in restore(arguments.file, load_cloud(arguments.config), arguments.replace):
        print(line)
    return 0


def _copy(arguments: argparse.Namespace) -> int:
    old, new = load_cloud(arguments.source), load_cloud(arguments.target)
    if old.fleet != new.fleet:
        raise ConfigError("fleet", new.fleet, repr(old.fleet), str(arguments.target))
    act_as_owner(Path(old.state_dir))
    with closing(open_store(old)) as source, closing(open_store(new)) as target:
        for line in copy_store(source, target):
            print(line)
    print(f"Serve with {arguments.target} from now on; the old store is left unchanged.")
    return 0


def open_reader(arguments: argparse.Namespace, last: int | None = LAST_ROUNDS) -> Reader:
    """Open a reader of the fleet's state with the ``last`` rounds of each run; None means all rounds."""
    return _reader(*open_state(arguments), last)


def tell_if_silent(cloud: CloudConfig, store: Store) -> None:
    """Print a note if no coordinator is running, as requests then wait until one starts."""
    if not _reader(cloud, store, LAST_ROUNDS).read().coordinator.running:
        print("No coordinator is running: start one with `sedge-cloud serve` or `sedge-cloud up`.")


def _reader(cloud: CloudConfig, store: Store, last: int | None) -> Reader:
    return Reader(cloud.fleet, Path(cloud.state_dir), store, last)


def at_least_one(text: str) -> int:
    """Parse a count of 1 or more from the command line."""
    return _whole(text, 1, 65536)


def from_zero(text: str) -> int:
    """Parse a count of 0 or more from the command line, such as the number of devices to skip."""
    return _whole(text, 0, 2**31 - 1)


def seconds_of(key: str, text: str, least: int = 0) -> float:
    """Parse a duration such as ``90s``, ``30m``, ``1h`` or ``2d`` into seconds, ``least`` to a year.

    Raises ``ConfigError`` for the option ``key``.
    """
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not number.isdecimal() or not least <= int(number) * unit <= _YEAR_S:
        raise ConfigError(key, text, "a duration such as 30m, 1h or 7d, at most 365d")
    return float(int(number) * unit)


def _whole(text: str, least: int, most: int) -> int:
    number = int(text) if text.isdecimal() else -1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected {least} to {most}")
    return number
