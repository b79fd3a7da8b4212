"""``sedge-cloud``: the coordinator's command line."""

import argparse
import json
import logging
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec

from sedge_cloud.admin import runs as administration
from sedge_cloud.admin.bundles import costs
from sedge_cloud.admin.commands import (
    add_run_commands,
    add_state_commands,
    open_reader,
    open_state,
    tell_if_silent,
)
from sedge_cloud.admin.device_commands import add_device_commands
from sedge_cloud.admin.doctor import examine
from sedge_cloud.admin.policies import read_policy
from sedge_cloud.admin.rollout_commands import add_rollout_commands
from sedge_cloud.admin.run_report import run_report
from sedge_cloud.admin.service_files import ServicePaths, write_service_files
from sedge_cloud.admin.signing_commands import (
    add_key_commands,
    add_run_description,
    add_sign_command,
)
from sedge_cloud.admin.templates import write_first_files
from sedge_cloud.admin.trial import trial
from sedge_cloud.company import Company
from sedge_cloud.config import (
    CloudConfig,
    RunConfig,
    RunFile,
    broker_settings,
    load_cloud,
)
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.figures.numbers import rounds_text
from sedge_cloud.outlets.sidecars import sidecars
from sedge_cloud.outlets.tables import table, terminal_width
from sedge_cloud.processes.heartbeat import Heartbeat
from sedge_cloud.processes.membership import Membership
from sedge_cloud.recorder import Recorder
from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.run_file import load_run
from sedge_cloud.service import Service
from sedge_cloud.store.cache import Memory
from sedge_cloud.store.opening import is_shared, open_store
from sedge_cloud.strategies import STRATEGIES
from sedge_protocol.errors import ConfigError, NotInstalled, Words
from sedge_protocol.host.command_line import Parser, command, exit_status, parsed
from sedge_protocol.host.console import check_printer
from sedge_protocol.host.loop import Loop, lock_folder
from sedge_protocol.host.privileges import act_as_owner, as_caller
from sedge_protocol.host.reference import reference
from sedge_protocol.host.systemd import log_to_stderr

FILES: Mapping[str, type[msgspec.Struct]] = {"cloud.toml": CloudConfig, "run.toml": RunFile}
TRIAL_URL = "mqtt://127.0.0.1:1883"


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit status (docs/commands.md)."""

    def call() -> int:
        arguments = parsed(parser(), argv, needs_posix=True)
        with ExitStack() as arguments.opened:
            return int(arguments.call(arguments))

    return exit_status("sedge-cloud", call)


def parser() -> Parser:
    """Build the command-line parser."""
    made = command(
        "sedge-cloud", "The coordinator of a Sedge fleet.", "cloud.toml",
        ["sedge-cloud up", "sedge-cloud run list -c fleet/cloud.toml"],
    )  # fmt: skip
    commands = made.add_commands()

    init = commands.add_parser(
        "init", help="write a first cloud.toml and mosquitto.conf", config="",
        examples=["sedge-cloud init fleet --fleet lab", "sedge-cloud init --service --fleet lab"],
    )  # fmt: skip
    init.add_argument(
        "folder", type=Path, nargs="?", help="the folder to write to; not with --service"
    )
    init.add_argument("--fleet", required=True, help="the fleet's name")
    init.add_argument("--url", help=f"where the broker will listen (default: {TRIAL_URL})")
    help_text = (
        "write under /etc for sedge-cloud.service and Debian's Mosquitto, with the right owners"
    )
    init.add_argument("--service", action="store_true", help=help_text)
    help_text = "with --service: use TLS, with a certificate for these names of this machine"
    init.add_argument("--tls", nargs="+", metavar="HOST", help=help_text)
    help_text = "with --tls: require client certificates from the fleet's authority"
    init.add_argument("--client-certificates", action="store_true", help=help_text)
    init.set_defaults(call=_init)

    up = commands.add_parser(
        "up", config="",
        help="try a fleet: write the first files, run Mosquitto and the coordinator until Ctrl-C",
        examples=["sedge-cloud up", "sedge-cloud up fleet --url mqtt://192.168.1.5:1883"],
    )  # fmt: skip
    help_text = "the fleet's folder, created on the first start (default: fleet)"
    up.add_argument("folder", type=Path, nargs="?", default=Path("fleet"), help=help_text)
    help_text = "where devices reach the broker (default: this machine's address, a free port)"
    up.add_argument("--url", help=help_text)
    up.set_defaults(call=_up)
    serve = commands.add_parser(
        "serve", help="run the coordinator", examples=["sedge-cloud serve -c fleet/cloud.toml"]
    )
    serve.set_defaults(call=_serve)
    doctor = commands.add_parser(
        "doctor", help="check everything", examples=["sedge-cloud doctor -c fleet --json"]
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object per check")
    doctor.set_defaults(call=_doctor)
    keys = commands.add_parser(
        "reference", help="describe every key of a file, or every option of a strategy", config="",
        examples=["sedge-cloud reference run.toml", "sedge-cloud reference fedavg"],
    )  # fmt: skip
    keys.add_argument("of", choices=[*FILES, *STRATEGIES])
    keys.set_defaults(call=_reference)
    _run_parser(commands.add_parser("run", help="start, stop and inspect runs"))
    add_state_commands(commands)
    add_device_commands(commands)
    add_key_commands(commands)
    add_rollout_commands(commands)
    return made


def _run_parser(parser: Parser) -> None:
    commands = parser.add_commands()
    start = commands.add_parser(
        "start", help="start a run",
        examples=["sedge-cloud run start first --bundle model --run-file run.toml"],
    )  # fmt: skip
    add_run_description(start)
    start.add_argument(
        "--policy", type=Path, metavar="FILE", help="the run's policy, from `run sign`"
    )
    start.set_defaults(call=_run_start)
    help_text = "start from the global model of this run, or of this .npz file"
    start.add_argument("--from", dest="source", metavar="RUN", default="", help=help_text)
    stop = commands.add_parser("stop", help="stop a run", examples=["sedge-cloud run stop first"])
    stop.add_argument("name")
    stop.set_defaults(call=_run_stop)
    listed = commands.add_parser("list", help="every run", examples=["sedge-cloud run list --json"])
    listed.add_argument("--json", action="store_true", help="one JSON object per run")
    listed.set_defaults(call=_run_list)
    show = commands.add_parser(
        "show", help="a run's rounds", examples=["sedge-cloud run show first"]
    )
    show.add_argument("name")
    show.add_argument("--json", action="store_true", help="one JSON object per round")
    show.set_defaults(call=_run_show)
    help_text = "show the fleet and redraw it at every change, until no run is running"
    watch = commands.add_parser("watch", help=help_text, examples=["sedge-cloud run watch"])
    watch.add_argument("name", nargs="?", help="only this run (default: all running ones)")
    watch.add_argument("--json", action="store_true", help="print one JSON object per change")
    watch.set_defaults(call=_run_watch)
    add_run_commands(commands)
    add_sign_command(commands)


def _init(arguments: argparse.Namespace) -> int:
    folder: Path | None = arguments.folder
    if arguments.service:
        return _init_service(arguments)
    if arguments.client_certificates:
        raise ConfigError("--client-certificates", "alone", "--service --tls as well")
    if arguments.tls is not None:
        raise ConfigError("--tls", Words("given alone"), "--service as well")
    if folder is None:
        raise ConfigError("folder", None, "the folder to write to, or --service")
    write_first_files(folder, arguments.fleet, arguments.url or TRIAL_URL)
    print(
        f"Written to {folder}. Next:\n"
        f"  sedge-cloud up {folder}\n"
        f"  sedge-cloud -c {folder}/cloud.toml device add my-first-device"
    )
    return 0


def _init_service(arguments: argparse.Namespace) -> int:
    if arguments.folder is not None:
        raise ConfigError("folder", str(arguments.folder), "no folder with --service")
    url = write_service_files(
        arguments.fleet, arguments.url, arguments.tls, ServicePaths(), arguments.client_certificates
    )
    print(
        f"Written to /etc/sedge and /etc/mosquitto; devices will connect to {url}. Next:\n"
        "  systemctl restart mosquitto\n"
        "  systemctl enable --now sedge-cloud sedge-cloud-accounts.path\n"
        "  sedge-cloud device add --service my-first-device"
    )
    return 0


def _reference(arguments: argparse.Namespace) -> int:
    of: str = arguments.of
    print(reference(of, FILES[of] if of in FILES else STRATEGIES[of]), end="")
    return 0


def _up(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    with trial(folder, arguments.url) as greeting:
        print(greeting, flush=True)
        arguments.config = folder / "cloud.toml"
        return _serve(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    cloud = load_cloud(arguments.config)
    log_to_stderr(cloud.log_level)
    settings = broker_settings(cloud)
    folder = act_as_owner(Path(cloud.state_dir), for_good=True)
    with (
        lock_folder(folder),
        closing(open_store(cloud)) as store,
        store.serving(shared=is_shared(cloud)),
        closing(Loop()) as loop,
    ):
        loop.stop_on_signals()
        is_alone = not is_shared(cloud)
        members = Membership(store, time.monotonic(), is_alone)
        core = Coordinator(
            cloud.fleet, store, cloud.gather_ms / 1000, int(members.wall(time.monotonic())),
            keep=cloud.keep, memory=Memory.of_machine(cloud.memory_share), wall=members.wall,
            shared=not is_alone, compute=cloud.compute.compute(),
        )  # fmt: skip
        recorder = Recorder(core, members.wall)
        with (
            sidecars(cloud, settings),
            nullcontext() if is_alone else _heartbeat(cloud, members),
            closing(
                Service(core, settings, recorder=recorder, company=Company(core, members, is_alone))
            ) as service,
        ):
            service.ready()
            loop.run([service], lambda: False)
    logging.getLogger("sedge.cloud").info(
        "stopped; nothing is lost: rounds continue at the next start"
    )
    return 0


@contextmanager
def _heartbeat(cloud: CloudConfig, members: Membership) -> Generator[None]:
    """Renew this process's lease in the background, even during a slow step of the main loop."""
    with closing(open_store(cloud, any_thread=True)) as store, closing(Heartbeat(store, members)):
        yield


def _doctor(arguments: argparse.Namespace) -> int:
    return 0 if examine(arguments.config, check_printer(arguments.json)) else 1


def _run_start(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    whole, *narrower = arguments.bundle
    with as_caller():
        config = load_run(arguments.run_file)
        policy = read_policy(arguments.policy, cloud.trust, arguments.name)
    remarks = administration.start_run(
        store, arguments.name, whole, config, narrower, arguments.source, policy
    )
    for folder in arguments.bundle:
        for line in costs(folder, config.training):
            print(line)
    for remark in remarks:
        print(remark)
    print(f"run {arguments.name} begins as soon as its devices are online")
    tell_if_silent(cloud, store)
    return 0


def _run_stop(arguments: argparse.Namespace) -> int:
    administration.stop_run(open_state(arguments)[1], arguments.name)
    print(f"run {arguments.name} is stopped")
    return 0


def _run_list(arguments: argparse.Namespace) -> int:
    _, store = open_state(arguments)
    rows = [("run", "status", "strategy", "rounds")]
    for row in store.runs():
        config = msgspec.msgpack.decode(row.config, type=RunConfig)
        closed = read_sums(row.sums).closed
        planned = config.total_rounds
        if arguments.json:
            fields = {"run": row.run, "status": row.status, "strategy": config.strategy}
            print(json.dumps({**fields, "closed_rounds": closed, "total_rounds": planned}))
        else:
            rows.append(
                (
                    row.run,
                    row.status,
                    config.strategy,
                    rounds_text(closed, planned, config.num_rounds),
                )
            )
    if not arguments.json:
        print("\n".join(table(rows, width=terminal_width())))
    return 0


def _run_show(arguments: argparse.Namespace) -> int:
    reader, width = open_reader(arguments, None), terminal_width()
    for line in run_report(reader, arguments.name, arguments.json, width):
        print(line)
    return 0


def _run_watch(arguments: argparse.Namespace) -> int:
    try:
        from sedge_cloud.outlets import watcher as watch  # rich is an optional dependency
    except ModuleNotFoundError as exc:
        raise NotInstalled("run watch", exc.name or "a package", "http") from exc
    name: str | None = arguments.name
    reader = open_reader(arguments)
    if name is not None and reader.read().run(name) is None:
        raise ConfigError("run", name, "the name of a run (see `run list`)")
    with suppress(KeyboardInterrupt):
        (watch.as_json if arguments.json else watch.watch)(reader, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
