"""``sedge-emulate``: trains a fleet of virtual devices on one host.

Training is real, not simulated. Importing torch takes seconds, so each command imports its code only when
it is called: help and mistyped options appear without that delay, and Ctrl-C works during the import.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sedge_protocol.host.command_line import Parser, command, exit_status, parsed


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv

    def call() -> int:
        arguments = parsed(parser(), argv)
        arguments.argv = argv
        with ExitStack() as arguments.opened:  # ``report`` opens a fleet's store
            return int(arguments.call(arguments))

    return interruptible("sedge-emulate", call)


def interruptible(name: str, call: Callable[[], int]) -> int:
    """Call ``call``, and return the command's exit status.

    SIGTERM and SIGHUP interrupt it as Ctrl-C does.
    """

    def ended() -> int:
        with _ended_by("SIGTERM"), _ended_by("SIGHUP"):
            return call()

    return exit_status(name, ended)


@contextmanager
def _ended_by(name: str) -> Generator[None]:
    """Make the signal ``name`` act like Ctrl-C within the ``with`` block.

    The broker, the workers and temporary folders are then cleaned up as this process ends. A signal that is
    ignored stays ignored, because nohup relies on that. Windows has no SIGHUP.
    """
    number = getattr(signal, name, signal.SIGTERM)
    before = signal.getsignal(number)
    if before is not signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def parser() -> Parser:
    """Build the command-line parser."""
    made = command(
        "sedge-emulate", "Virtual devices, real training.",
        examples=["sedge-emulate run fleet.toml", "sedge-emulate compare runs/latest"],
    )  # fmt: skip
    commands = made.add_commands()
    run = commands.add_parser(
        "run", help="run every strategy of a fleet file",
        examples=[
            "sedge-emulate run fleet.toml --devices 20 --out runs/twenty",
            "sedge-emulate run fleet.toml --seeds 1,2,3 --only fedavg",
        ],
    )  # fmt: skip
    run.add_argument("fleet", type=Path, help="fleet.toml")
    run.add_argument("--devices", type=int, help="override `devices` of the fleet file")
    run.add_argument("--rounds", type=int, help="override `num_rounds` of the fleet file")
    seed = run.add_mutually_exclusive_group()
    seed.add_argument("--seed", type=int, help="override `seed` of the fleet file")
    seed.add_argument(
        "--seeds",
        type=_seeds,
        metavar="N,N,...",
        help="run once for each seed, in --out/seed-N, then compare the runs",
    )
    run.add_argument("--only", action="append", help="only this strategy, by label; repeatable")
    run.add_argument(
        "--link",
        help="override `link` of the fleet file: memory, broker, mosquitto, amqtt or mqtt://host[:port]",
    )
    run.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="train on the Ray cluster at host:port; `local` starts one for this run",
    )
    again = run.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", action="store_true", help="resume the emulation in --out where it was stopped"
    )
    again.add_argument(
        "--fresh",
        action="store_true",
        help="discard a stopped emulation, start over, and ignore cached exports",
    )
    run.add_argument("--out", type=Path, default=Path("runs/latest"), help="folder for the results")
    run.add_argument(
        "--verbose", action="store_true", help="show the logs of the agents and the coordinator"
    )
    run.set_defaults(call=_run)
    compare = commands.add_parser(
        "compare", help="show mean and spread over runs with several seeds",
        examples=["sedge-emulate compare runs/twenty --target 0.85"],
    )  # fmt: skip
    compare.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="output folder of a run, with or without --seeds",
    )
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--latex", action="store_true", help="print tables for LaTeX with booktabs")
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page with curves to FILE")
    compare.add_argument(
        "--target", type=float, help="also show the cost of reaching this value, such as 0.85"
    )
    compare.set_defaults(call=_compare)
    report = commands.add_parser(
        "report", help="runs of a real fleet as an HTML report", config="cloud.toml",
        examples=["sedge-emulate report first second -c fleet/cloud.toml --out report.html"],
    )  # fmt: skip
    report.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's name, from `sedge-cloud run list`"
    )
    report.add_argument("--out", type=Path, default=Path("report.html"), help="the file to write")
    report.set_defaults(call=_report)
    keys = commands.add_parser("reference", help="every key of a fleet file")
    keys.set_defaults(call=_reference)
    help_text = "estimate a device's monthly link costs or, without a fleet file, a fleet's costs"
    examples = ["sedge-emulate cost fleet.toml --per-mb 0.01", "sedge-emulate cost --devices 1e6"]
    _cost_parser(commands.add_parser("cost", help=help_text, examples=examples))
    return made


def _cost_parser(cost: argparse.ArgumentParser) -> None:
    cost.add_argument("fleet", type=Path, nargs="?", help="fleet.toml")
    help_text = (
        "override `devices` of the fleet file; without a file, the fleet's size, such as 1e7"
    )
    cost.add_argument("--devices", type=_count, help=help_text, metavar="N")
    cost.add_argument("--days", type=_quantity, default=30.0, help="(default: 30)", metavar="N")
    cost.add_argument("--rounds-per-day", type=_quantity, metavar="N",
                      help="with a file, rounds of a device (default: 24); without, rounds of the "
                      "fleet (default: 1)")  # fmt: skip
    measured = cost.add_argument_group("cost of one device, from a short emulation of a fleet file")
    measured.add_argument(
        "--rounds", type=int, default=4, help="number of rounds to measure (default: 4)"
    )
    measured.add_argument("--seed", type=int, help="override `seed` of the fleet file")
    measured.add_argument(
        "--only", action="append", help="only this strategy, by label; repeatable"
    )
    _quantities(
        measured,
        ("--online-hours", 24.0, "hours per day with a connection, kept open by keepalives"),
        ("--header-bytes", 80.0, "TCP, IP and acknowledgement, per packet of at most 1400 bytes"),
        ("--kbit-s", 100.0, "the link's rate"),
        ("--radio-w", 1.0, "watts of the radio during transfers"),
        ("--train-s", 0.0, "seconds of training per round"),
        ("--train-w", 3.0, "watts during training"),
    )
    paper = cost.add_argument_group("cost of a fleet, from the benchmarks' results")
    _quantities(
        paper,
        ("--share", 0.01, "share of the devices in a round"),
        ("--online", 1.0, "share of the devices connected at a time"),
        ("--processes", 3.0, "coordinators"),
        ("--per-million-connection-minutes", 0.0, "price per 10^6 minutes of connection"),
    )
    paper.add_argument(
        "--results", type=Path, metavar="DIR", help="folder with the benchmarks' results"
    )
    _quantities(
        cost.add_argument_group("prices"),
        ("--per-mb", 0.0, "price per 10^6 bytes in either direction"),
        ("--per-million-units", 0.0, "price per 10^6 units of 5 KB, each message rounded up"),
    )
    cost.set_defaults(call=_cost, link="memory", resume=False, fresh=False, ray=None)


def _quantities(group: argparse._ArgumentGroup, *options: tuple[str, float, str]) -> None:
    for name, default, help_text in options:
        text = f"{help_text} (default: {default:g})"
        group.add_argument(name, type=_quantity, default=default, help=text, metavar="N")


def _seeds(text: str) -> tuple[int, ...]:
    seeds = text.split(",")
    if not all(seed.isdecimal() for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
        raise argparse.ArgumentTypeError(
            f"{text}: expected different whole numbers, separated by commas"
        )
    return tuple(map(int, seeds))


def _quantity(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1e12:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 to 1e12")
    return value


def _count(text: str) -> int:
    value = float(text)
    if not (1 <= value <= 1e12 and value == int(value)):
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1 to 1e12")
    return int(value)


def _cost(arguments: argparse.Namespace) -> int:
    if arguments.rounds_per_day is None:
        arguments.rounds_per_day = 1.0 if arguments.fleet is None else 24.0
    if arguments.fleet is None:
        from sedge_emulate.fleet_plan import plan

        return plan(arguments)
    from sedge_emulate.cost import cost

    return cost(arguments)


def _compare(arguments: argparse.Namespace) -> int:
    from sedge_emulate.compare.command import compare

    return compare(arguments)


def _report(arguments: argparse.Namespace) -> int:
    from sedge_emulate.report.stored import report

    return report(arguments)


def _reference(_: argparse.Namespace) -> int:
    from sedge_emulate.config import EmulationConfig
    from sedge_protocol.host.reference import reference

    print(reference("fleet.toml", EmulationConfig), end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from sedge_emulate.run import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
