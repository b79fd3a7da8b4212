"""``sedge-edge``: the agent's command line."""

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from sedge_edge import VERSION
from sedge_edge.agent import Agent, Identity
from sedge_edge.config import load_config
from sedge_edge.data import load_data
from sedge_edge.doctor import examine, installed_backends
from sedge_edge.memory_limit import memory_mb
from sedge_edge.prediction import personal_model, predict_file
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.runtime import Programs, in_pool, open_agent
from sedge_edge.training.job import CODECS
from sedge_protocol.codec import Compression
from sedge_protocol.errors import ConfigError, LinkError, SedgeError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.console import reader_may_leave
from sedge_protocol.host.disk import translated
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.loop import Loop, lock_folder
from sedge_protocol.host.privileges import act_as_owner, as_caller
from sedge_protocol.host.systemd import notify
from sedge_protocol.wire.messages import Hello

DEFAULT_CONFIG = Path("/etc/sedge/edge.toml")


def main(argv: list[str] | None = None) -> int:
    """Run one command; 0 when it went well, 1 when the doctor found something, 2 for an error."""
    arguments = _parser().parse_args(argv)
    try:
        with reader_may_leave():
            return int(arguments.call(arguments))
    except SedgeError as exc:
        print(f"sedge-edge: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sedge-edge", description="The Sedge agent of one device.")
    parser.add_argument("--version", action="version", version=f"sedge-edge {VERSION}")
    default = _default_config()
    parser.add_argument("-c", "--config", type=Path, default=default, help=f"default: {default}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("run", help="take part in rounds until stopped").set_defaults(call=_run)
    once = commands.add_parser("once", help="do what is waiting, then leave")
    once.add_argument("--timeout-s", type=float, default=600.0, help="leave after this long anyway")
    once.set_defaults(call=_once)
    commands.add_parser("status", help="what the device holds").set_defaults(call=_status)
    commands.add_parser("doctor", help="check everything").set_defaults(call=_doctor)
    predict = commands.add_parser("predict", help="use the personal model, without any network")
    predict.add_argument("inputs", type=Path, help=".npy, or .npz with x")
    predict.add_argument("--run", help="the run whose model to use (default: the newest)")
    predict.add_argument("--out", type=Path, help="write the model's outputs (N, C) as .npy")
    predict.set_defaults(call=_predict)
    return parser


def _default_config() -> Path:
    """The configuration of where we are; a folder that we may not look into has none."""
    here = Path("edge.toml")
    try:
        return here if here.exists() else DEFAULT_CONFIG
    except OSError:
        return DEFAULT_CONFIG


def _run(arguments: argparse.Namespace) -> int:
    return _work(arguments.config, lambda agent: False)


def _once(arguments: argparse.Namespace) -> int:
    """Leave when nothing is left to do and nothing has come for a moment."""
    timeout_s: float = arguments.timeout_s
    if not (math.isfinite(timeout_s) and timeout_s >= 0):
        raise ConfigError("--timeout-s", timeout_s, "a finite number of seconds, from 0")
    deadline = time.monotonic() + timeout_s
    quiet_since: list[float] = []
    was_heard = False

    def done(agent: Agent) -> bool:
        nonlocal was_heard
        now = time.monotonic()
        was_heard = was_heard or agent.welcomed
        if now > deadline:
            return True
        if not (agent.welcomed and agent.idle):
            quiet_since.clear()
            return False
        quiet_since.append(now)
        return now - quiet_since[0] > 2.0  # an order follows a welcome at once

    status = _work(arguments.config, done)
    if not was_heard:
        raise LinkError(
            f"no coordinator has answered within {timeout_s:.0f} s; what waits is kept for the next time"
        )
    return status


def _work(path: Path, done: Callable[[Agent], bool]) -> int:
    config = load_config(path)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    examples = load_data(config.data, path.absolute().parent)
    keys, settings = config.keys(), config.broker_settings()
    folder = act_as_owner(config.state_dir, for_good=True)
    lock = lock_folder(folder)
    hello = Hello(
        bytes(16),
        VERSION,
        installed_backends(),
        tuple(Compression),
        CODECS,
        len(examples[0].targets),
        len(examples[1].targets),
        memory_mb(),
    )
    identity = Identity(config.device, config.fleet, keys, hello)
    agent = open_agent(identity, folder, np.random.default_rng(), int(time.time()))
    programs = Programs(config.backend.name, config.backend.threads)
    with closing(Loop()) as loop, ThreadPoolExecutor(1) as pool:
        loop.stop_on_signals()
        runtime = in_pool(agent, settings, examples, programs, pool, loop.wake)
        notify("READY=1")
        try:
            loop.run([runtime], lambda: done(agent))
        finally:
            notify("STOPPING=1")
            runtime.close()
    lock.close()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    folder = act_as_owner(config.state_dir)
    state = Journal(folder / "journal", AgentState, SCHEMA).load()
    if state is None:
        print(f"device {config.device} of fleet {config.fleet}: has never run")
        return 0
    print(
        f"device {config.device} of fleet {config.fleet}: started {state.incarnation} (incarnation number)"
    )
    for run, known in state.runs.items():
        model = "has a personal model" if known.kept.model else "has no model of its own"
        print(f"run {run}: last round {known.round}, {model}")
    for order in state.orders.values():
        print(f"run {order.run}: working on round {order.round} ({order.task})")
    blobs = BlobFolder(folder)
    for waiting in state.outbox:
        size = blobs.size(waiting.blob)
        print(f"run {waiting.run}: the update of round {waiting.round} waits, {size} bytes")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    def tell(good: bool, text: str) -> None:
        print(f"{'ok     ' if good else 'PROBLEM'}  {text}")

    return 0 if examine(arguments.config, tell) else 1


def _predict(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    if arguments.out is not None and arguments.out.suffix != ".npy":
        raise ConfigError("--out", str(arguments.out), "a name that ends in .npy")
    state_dir = act_as_owner(config.state_dir)
    model = personal_model(msgspec.structs.replace(config, state_dir=state_dir), arguments.run)
    with as_caller():
        outputs = predict_file(model, arguments.inputs, config.backend)
        if arguments.out is not None:
            with translated("write the outputs to", arguments.out):
                np.save(arguments.out, outputs)
    if arguments.out is None:
        for row in outputs.argmax(axis=1) if model.num_classes else outputs:
            print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
