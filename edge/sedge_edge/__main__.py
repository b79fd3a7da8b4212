"""``sedge-edge``: the agent's command line.

Modules that only some devices or commands need are imported where they are used, to keep the agent small.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_edge.agent import Agent, Identity
from sedge_edge.backends import UserCode, impossible_features, usable_backends
from sedge_edge.config import EdgeConfig, load_config
from sedge_edge.data import LiveData
from sedge_edge.diary import Diary
from sedge_edge.gates import Gates
from sedge_edge.http_downloads import HttpDownloads
from sedge_edge.own_files import own_files
from sedge_edge.prediction import PersonalModel, personal_model, predict_file
from sedge_edge.rounds.retention import Retention
from sedge_edge.rounds.state import SCHEMA, AgentState, StateStore
from sedge_edge.runtime import OpenBundles, open_agent, pooled_runtime
from sedge_edge.sensors import Sensors
from sedge_edge.serving import Model
from sedge_edge.status import status
from sedge_edge.training.job import CODECS
from sedge_protocol import VERSION
from sedge_protocol.codec import Compression
from sedge_protocol.errors import ConfigError, LinkError, Words
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.command_line import Parser, command, exit_status, parsed, seconds
from sedge_protocol.host.console import check_printer, json_text
from sedge_protocol.host.disk import translated
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.loop import Loop, lock_folder
from sedge_protocol.host.memory_limit import memory_mb, unpool_large_arrays
from sedge_protocol.host.privileges import act_as_owner, as_caller
from sedge_protocol.host.reference import reference
from sedge_protocol.host.signing import verifiers
from sedge_protocol.host.systemd import log_to_stderr, notify
from sedge_protocol.wire.joining import RENEWS
from sedge_protocol.wire.messages import Hello


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit status (docs/commands.md)."""

    def call() -> int:
        arguments = parsed(parser(), argv, needs_posix=True)
        return int(arguments.call(arguments))

    return exit_status("sedge-edge", call)


def parser() -> Parser:
    """Return the parser for the command line."""
    made = command(
        "sedge-edge", "The Sedge agent of one device.", "edge.toml",
        ["sedge-edge doctor", "sedge-edge run -c device-1/edge.toml"],
    )  # fmt: skip
    commands = made.add_commands()
    running = commands.add_parser(
        "run", help="take part in rounds until stopped",
        examples=["sedge-edge run", "SEDGE_CONFIG=/home/pi/device-1 sedge-edge run"],
    )  # fmt: skip
    running.set_defaults(call=_run)
    joining = commands.add_parser(
        "join", help="join a fleet with a token or line from its coordinator", config="",
        examples=["sedge-edge join", "sedge-edge join --out pi-1 sedge:..."],
    )  # fmt: skip
    help_text = (
        "the line printed by `sedge-cloud device token add` or `device add --join` (default: stdin)"
    )
    joining.add_argument("line", nargs="?", help=help_text)
    joining.add_argument("--out", type=Path, help="the folder (default: the device's id)")
    help_text = "with a token: the id to request (default: this machine's name)"
    joining.add_argument("--name", default="", help=help_text)
    help_text = "give the device in the folder a new secret; keep its edge.toml and state"
    joining.add_argument("--replace", action="store_true", help=help_text)
    help_text = "with a token: give up after this many seconds (default: wait until accepted)"
    joining.add_argument("--timeout-s", type=seconds, help=help_text)
    help_text = "for sedge-edge.service; the folder is then /etc/sedge"
    joining.add_argument("--service", action="store_true", help=help_text)
    joining.set_defaults(call=_join)
    once = commands.add_parser(
        "once", help="do all pending work, then exit", examples=["sedge-edge once --timeout-s 300"]
    )
    once.add_argument(
        "--timeout-s", type=seconds, default=600.0, help="exit after at most this many seconds"
    )
    once.set_defaults(call=_once)
    shown = commands.add_parser(
        "status", help="show the state of the device", examples=["sedge-edge status --json"]
    )
    shown.add_argument("--json", action="store_true", help="one JSON object")
    shown.set_defaults(call=_status)
    checking = commands.add_parser(
        "doctor", help="look for problems", examples=["sedge-edge doctor -c device-1/edge.toml"]
    )
    checking.add_argument("--json", action="store_true", help="one JSON object per check")
    help_text = "compare the data with this bundle's model (default: the newest run's)"
    checking.add_argument("--bundle", type=Path, metavar="FOLDER", help=help_text)
    checking.set_defaults(call=_doctor)
    pruning = commands.add_parser(
        "prune",
        help="delete runs beyond the limits of [keep]",
        examples=["sedge-edge prune --dry-run"],
    )
    pruning.add_argument("--dry-run", action="store_true", help="only report what would be deleted")
    pruning.set_defaults(call=_prune)
    leaving = commands.add_parser(
        "leave",
        help="leave the fleet: tell the coordinator, delete the state and the secret",
        description="Leave the fleet. This is final: the coordinator revokes the device, and its state and "
        "its secret are deleted, whether the coordinator answers or not.",
        examples=["sedge-edge leave --yes"],
    )
    leaving.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    leaving.set_defaults(call=_leave)
    keys = commands.add_parser("reference", help="describe every key of edge.toml", config="")
    keys.set_defaults(call=_reference)
    predict = commands.add_parser(
        "predict", help="predict with the personal model, without any network",
        examples=["sedge-edge predict photo.png", "sedge-edge predict rows.csv --json"],
    )  # fmt: skip
    help_text = (
        ".csv, an image, a folder of images as for training, .npy, or .npz (x, or inputs by name)"
    )
    predict.add_argument("inputs", type=Path, help=help_text)
    predict.add_argument("--run", help="the run whose model to use (default: the newest)")
    predict.add_argument("--out", type=Path, help="write the model's outputs (N, C) as .npy")
    predict.add_argument("--json", action="store_true", help="one JSON object per row")
    predict.set_defaults(call=_predict)
    export = commands.add_parser(
        "export", help="write the personal model for other programs",
        examples=["sedge-edge export model.onnx"],
    )  # fmt: skip
    export.add_argument(
        "out",
        type=Path,
        help=".npz, .safetensors, .pt: its tensors by name; .onnx: x (B, ...) to logits (B, C)",
    )
    export.add_argument("--run", help="the run whose model to write (default: the newest)")
    export.set_defaults(call=_export)
    return made


def _reference(_: argparse.Namespace) -> int:
    print(reference("edge.toml", EdgeConfig), end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    _run_agent(arguments.config, lambda agent: False)
    return 0


def _join(arguments: argparse.Namespace) -> int:
    from sedge_edge.joining import JoinRequest, join

    line: str = arguments.line or ""
    if arguments.line is None:
        if sys.stdin.isatty():
            print("The token, or the line of `sedge-cloud device add --join`:", file=sys.stderr)
        line = str(sys.stdin.readline())
    wanted = JoinRequest(
        arguments.out, arguments.service, arguments.name, arguments.replace, arguments.timeout_s
    )
    print(join(line, wanted, lambda text: print(text, file=sys.stderr, flush=True)))
    return 0


def _once(arguments: argparse.Namespace) -> int:
    """Run the agent until it has had nothing to do for a moment, then exit."""
    timeout_s: float = arguments.timeout_s
    deadline = time.monotonic() + timeout_s
    idle_since: float | None = None
    ever_welcomed = False

    def done(agent: Agent) -> bool:
        nonlocal idle_since, ever_welcomed
        now = time.monotonic()
        ever_welcomed = ever_welcomed or agent.welcomed
        if now > deadline:
            return True
        if not (agent.welcomed and agent.idle):
            idle_since = None
            return False
        idle_since = now if idle_since is None else idle_since
        return now - idle_since > 2.0  # a pending order would arrive right after the welcome

    if _run_agent(arguments.config, done):
        raise KeyboardInterrupt
    if not ever_welcomed:
        raise LinkError(
            f"no coordinator answered within {timeout_s:.0f} s; pending work is kept for the next start"
        )
    return 0


def _run_agent(path: Path, done: Callable[[Agent], bool]) -> bool:
    """Run the agent until ``done`` or a signal, without losing work. Returns True if Ctrl-C ended it."""
    unpool_large_arrays()
    config = load_config(path)
    log_to_stderr(config.log_level, status=True)
    examples = LiveData(config.data, path.absolute().parent)
    train, test = examples()
    backend, code = config.backend, UserCode(path.absolute().parent, config.backend.model)
    folder = act_as_owner(config.state_dir, for_good=True)
    lock = lock_folder(folder)
    keyring, certificate = config.keyring(folder), config.certificate(folder)
    hello = Hello(
        bytes(16),
        VERSION,
        usable_backends(backend.name),
        tuple(Compression),
        (*_codecs(backend.name, code.folder), *([RENEWS] if config.renews else [])),
        len(train.targets),
        len(test.targets),
        memory_mb(),
        certificate=b"" if certificate is None else certificate.name,
    )
    identity = Identity(config.device, config.fleet, keyring.base, hello)
    gates = Gates(config.gates, Sensors())
    rng, clock_s = np.random.default_rng(), int(time.time())
    permits, downloads = config.download.permits, HttpDownloads(config.download)
    agent = open_agent(
        identity, folder, rng, clock_s, gates.closed, config.keep, permits,
        own_files(config.frozen), verifiers(config.trust.keys), keyring, (config.settings, gates),
    )  # fmt: skip
    programs = OpenBundles(backend.name, backend.threads, code, folder)
    with closing(Loop()) as loop, ThreadPoolExecutor(1) as pool, _served(config, folder, code):
        loop.stop_on_signals()
        runtime = pooled_runtime(
            agent, config.broker_settings(), examples, programs, pool, loop.wake, gates.closed,
            config.watts, downloads, Diary(folder), certificate,
        )  # fmt: skip
        notify("READY=1")
        try:
            loop.run([runtime], lambda: done(agent))
        finally:
            notify("STOPPING=1")
            runtime.close()
    lock.close()
    logging.getLogger("sedge.edge").info(
        "stopped; all work is saved and continues at the next start"
    )
    return loop.interrupted


def _served(config: EdgeConfig, folder: Path, code: UserCode) -> AbstractContextManager[object]:
    """Return a context that serves the model on a socket, if the configuration names one."""
    if config.serve.socket is None:
        return nullcontext()
    from sedge_edge.model_socket import ModelSocket

    name, threads = config.backend.name, config.backend.threads
    return ModelSocket(config.serve.socket, lambda: Model(folder, None, name, threads, code))


def _codecs(backend: str, folder: Path) -> tuple[str, ...]:
    """Return the codecs to announce. If user code cannot be imported, orders are declined later."""
    try:
        missing = impossible_features(backend, folder)
    except ConfigError as exc:
        logging.getLogger("sedge.edge").error("%s", exc)
        return CODECS
    return tuple(codec for codec in CODECS if codec not in missing)


def _status(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    folder = act_as_owner(config.state_dir)
    state = Journal(folder / "journal", AgentState, SCHEMA).load()
    found = status(config, state, folder)
    if arguments.json:
        print(json_text(found))
    else:
        print(*found.lines(), sep="\n")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    """Delete runs as a running agent would. None may be running, because an agent keeps state in memory."""
    config, dry_run = load_config(arguments.config), bool(arguments.dry_run)
    folder = act_as_owner(config.state_dir)
    with nullcontext() if dry_run else lock_folder(folder):
        blobs = BlobFolder(folder)
        journal = Journal(folder / "journal", AgentState, SCHEMA)
        store = StateStore(journal, blobs.settle)
        gone = Retention(config.keep, blobs.sizes).surplus(
            store.state, lambda state: state.needed(blobs)
        )
        print(f"runs {'would be ' if dry_run else ''}deleted: {', '.join(gone) or 'none'}")
        if not dry_run:
            if gone:
                store.delete_runs(gone)
            freed = blobs.collect(store.state.needed(blobs), 0.0)
            print(f"freed: {freed / 1e6:.1f} MB")
    return 0


def _leave(arguments: argparse.Namespace) -> int:
    from sedge_edge.leaving import leave, member

    config = member(arguments.config)
    if not arguments.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfigError(
                "stdin",
                Words("no terminal"),
                "a terminal to confirm on, or --yes: leaving is final",
            )
        if not _confirmed(f"Delete the state and secret of {config.device} for good?"):
            return 1
    why = leave(config, act_as_owner(config.state_dir))
    with as_caller(), translated("delete", config.secret_file):
        config.secret_file.unlink(missing_ok=True)
    if why:
        print(f"the coordinator was not notified: {why}", file=sys.stderr)
        advice = f"on the coordinator, run: sedge-cloud device revoke {config.device}"
        print(advice, file=sys.stderr)
    print(f"{config.device}: state and secret deleted")
    return 1 if why else 0


def _confirmed(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _doctor(arguments: argparse.Namespace) -> int:
    from sedge_edge.doctor import examine

    report = check_printer(arguments.json)
    return 0 if examine(arguments.config, report, arguments.bundle) else 1


def _predict(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    if arguments.out is not None and arguments.out.suffix != ".npy":
        raise ConfigError("--out", str(arguments.out), "a name that ends in .npy")
    model = _personal_model(config, arguments.run)
    with as_caller():
        folder = arguments.config.absolute().parent
        outputs = predict_file(model, arguments.inputs, config.backend, folder)
        if arguments.out is not None:
            with translated("write the outputs to", arguments.out):
                np.save(arguments.out, outputs)
    if arguments.out is None:
        manifest = model.bundle.manifest
        if model.num_classes:
            found = outputs.argmax(axis=manifest.class_axis(outputs.shape))
            named = np.array(manifest.labels)[found] if manifest.labels else found
            _print_rows(named, outputs, arguments.json)
        else:
            _print_rows(outputs, outputs, arguments.json)
    return 0


def _print_rows(found: NDArray[np.generic], outputs: NDArray[np.float32], as_json: bool) -> None:
    """Print each row's prediction (N, ...). As JSON, also print the model's outputs (N, C, ...)."""
    for one, raw in zip(found, outputs, strict=True):
        if as_json:
            print(json_text({"prediction": one.tolist(), "outputs": raw.tolist()}))
        else:
            print(one.tolist() if one.dtype.kind in "iU" else one)


def _export(arguments: argparse.Namespace) -> int:
    from sedge_protocol.host.model_files import write_model

    model = _personal_model(load_config(arguments.config), arguments.run)
    with as_caller():
        write_model(model.bundle, model.theta, arguments.out)
    return 0


def _personal_model(config: EdgeConfig, run: str | None) -> PersonalModel:
    model = personal_model(act_as_owner(config.state_dir), run)
    if not model.trained:
        print(
            "not trained on this device yet: this is the model that it would start from",
            file=sys.stderr,
        )
    return model


if __name__ == "__main__":
    sys.exit(main())
