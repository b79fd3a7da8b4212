"""The commands ``rollout start``, ``status`` and ``rollback``."""

import argparse
import time
from pathlib import Path

from sedge_cloud.admin.commands import at_least_one, open_state
from sedge_cloud.admin.rollouts import rollout_lines, start_rollout
from sedge_cloud.store.rollouts import RolloutPlan
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.command_line import Commands

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_rollout_commands(commands: Commands) -> None:
    """Add the commands for rollouts."""
    help_text = "give a run's devices a new version of its bundle, in phases"
    verbs = commands.add_parser("rollout", help=help_text).add_commands()
    start = verbs.add_parser(
        "start", help="begin with the first phase; the rollout then proceeds, or aborts, automatically",
        examples=[
            "sedge-cloud rollout start first model-2",
            "sedge-cloud rollout start first model-2 --phases 1,10,100 --hold 1h --where site=lab",
        ],
    )  # fmt: skip
    start.add_argument("name", help="the run")
    start.add_argument("bundle", type=Path, help="folder made by sedge-export")
    usual = RolloutPlan(())
    help_text = "shares of the devices in percent (default: 1,10,100)"
    start.add_argument("--phases", default="1,10,100", metavar="P,P,…", help=help_text)
    help_text = "how long each phase lasts at least, such as 30m, 1h or 2d (default: no time)"
    start.add_argument("--hold", default="0s", metavar="TIME", help=help_text)
    help_text = "only devices that match, such as 'site=lab and memory_mb>=512'"
    start.add_argument("--where", metavar="CONDITION", default="", help=help_text)
    help_text = (
        "abort if this many percent more devices fail than with the previous bundle (default: 5)"
    )
    start.add_argument("--abort-at", type=float, default=100 * usual.abort_at, help=help_text)
    help_text = (
        "abort if a metric from 0 to 1 falls by this many hundredths more than elsewhere "
        "(default: 10)"
    )
    start.add_argument("--worse-by", type=float, default=100 * usual.worse_by, help=help_text)
    help_text = (
        "how many of a phase's new devices must succeed (default: 10); if it adds fewer, "
        "all that are reachable"
    )
    start.add_argument(
        "--min-devices", type=at_least_one, default=usual.min_devices, metavar="N", help=help_text
    )
    start.set_defaults(call=_start)
    status = verbs.add_parser(
        "status",
        help="show the progress of a run's rollouts",
        examples=["sedge-cloud rollout status first"],
    )
    status.add_argument("name", help="the run")
    status.set_defaults(call=_status)
    back = verbs.add_parser(
        "rollback", help="end a rollout: its devices get the previous bundle with their next order",
        examples=["sedge-cloud rollout rollback first"],
    )  # fmt: skip
    back.add_argument("name", help="the run")
    back.set_defaults(call=_rollback)


def phases_of(text: str) -> tuple[float, ...]:
    """Shares from percents. Raises ``ConfigError`` unless they grow, from above 0 to 100 at most."""
    expected = "growing percents from above 0 to 100, such as 1,10,100"
    try:
        shares = tuple(float(word) / 100 for word in text.split(","))
    except ValueError:
        raise ConfigError("--phases", text, expected) from None
    if not all(a < b for a, b in zip((0.0, *shares), shares, strict=False)) or shares[-1] > 1:
        raise ConfigError("--phases", text, expected)
    return shares


def seconds_of(text: str) -> float:
    """A time such as ``90s``, ``30m``, ``1h`` or ``2d``. Raises ``ConfigError``."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in UNITS:
        raise ConfigError("--hold", text, "a whole number and s, m, h or d, such as 1h")
    return float(int(number) * UNITS[unit])


def percent_of(key: str, value: float) -> float:
    """A share from 0 to 1. Raises ``ConfigError``."""
    if not 0 <= value <= 100:
        raise ConfigError(key, value, "a number from 0 to 100")
    return value / 100


def _start(arguments: argparse.Namespace) -> int:
    plan = RolloutPlan(
        phases=phases_of(arguments.phases),
        hold_s=seconds_of(arguments.hold),
        abort_at=percent_of("--abort-at", arguments.abort_at),
        worse_by=percent_of("--worse-by", arguments.worse_by),
        min_devices=arguments.min_devices,
        where=arguments.where,
    )
    _, store = open_state(arguments)
    row = start_rollout(store, arguments.name, arguments.bundle, plan)
    size = row.read_progress().sizes[-1]
    print(
        f"rollout {row.number} of run {row.run} begins with {size} device{'' if size == 1 else 's'}"
    )
    return 0


def _status(arguments: argparse.Namespace) -> int:
    lines = list(rollout_lines(open_state(arguments)[1], arguments.name, time.time()))
    print("\n".join(lines or [f"run {arguments.name} has had no rollout"]))
    return 0


def _rollback(arguments: argparse.Namespace) -> int:
    row = open_state(arguments)[1].roll_back(arguments.name, "the operator rolled it back")
    print(f"rollout {row.number} of run {row.run} is rolled back, order by order")
    return 0
