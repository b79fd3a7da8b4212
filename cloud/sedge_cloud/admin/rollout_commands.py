"""The commands ``rollout start``, ``status`` and ``rollback``."""

import argparse
import time
from pathlib import Path

from sedge_cloud.admin.commands import at_least_one, open_state, seconds_of
from sedge_cloud.admin.rollout_status import rollout_lines, rollout_reports
from sedge_cloud.admin.rollouts import start_rollout, start_settings
from sedge_cloud.figures.numbers import quantity
from sedge_cloud.store.rollouts import FLEET, RolloutPlan
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.command_line import Commands
from sedge_protocol.host.console import json_text


def add_rollout_commands(commands: Commands) -> None:
    """Add the commands for rollouts."""
    help_text = "give devices a new version of a run's bundle, or settings, in phases"
    verbs = commands.add_parser("rollout", help=help_text).add_commands()
    start = verbs.add_parser(
        "start", help="begin with the first phase; the rollout then proceeds, or aborts, automatically",
        examples=[
            "sedge-cloud rollout start first model-2",
            "sedge-cloud rollout start first model-2 --phases 1,10,100 --hold 1h --where site=lab",
            "sedge-cloud rollout start night.toml --hold 10m",
        ],
    )  # fmt: skip
    start.add_argument("name", nargs="?", default=FLEET, help="the run; omit it for settings")
    help_text = "folder from sedge-export, or TOML file with settings"
    start.add_argument("given", type=Path, help=help_text)
    usual = RolloutPlan(())
    help_text = "percentages of the devices (default: 1,10,100)"
    start.add_argument("--phases", default="1,10,100", metavar="P,P,…", help=help_text)
    help_text = "minimum length of each phase, such as 30m, 1h or 2d (default: none)"
    start.add_argument("--hold", default="0s", metavar="TIME", help=help_text)
    help_text = "only devices that match, such as 'site=lab and memory_mb>=512'"
    start.add_argument("--where", metavar="CONDITION", default="", help=help_text)
    help_text = (
        "abort if the share of failed devices exceeds the share among other devices by this many "
        "percentage points (default: 5)"
    )
    start.add_argument("--abort-at", type=float, default=100 * usual.abort_at, help=help_text)
    help_text = (
        "abort if a metric from 0 to 1 falls by this many hundredths more than on other devices "
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
        "status", help="show the progress of the rollouts of a run, or of settings",
        examples=["sedge-cloud rollout status first", "sedge-cloud rollout status --json"],
    )  # fmt: skip
    status.add_argument("name", nargs="?", default=FLEET, help="the run; omit it for settings")
    status.add_argument("--json", action="store_true", help="one JSON object per rollout")
    status.set_defaults(call=_status)
    back = verbs.add_parser(
        "rollback", help="end the newest rollout: its devices get back what they had before",
        examples=["sedge-cloud rollout rollback first", "sedge-cloud rollout rollback first --number 1"],
    )  # fmt: skip
    back.add_argument("name", nargs="?", default=FLEET, help="the run; omit it for settings")
    help_text = "end this rollout instead; later ones stay in effect"
    back.add_argument("--number", type=at_least_one, metavar="N", help=help_text)
    back.set_defaults(call=_rollback)


def phases_of(text: str) -> tuple[float, ...]:
    """Parse percentages into fractions.

    Raises ``ConfigError`` unless they rise, start above 0 and end at 100 or less.
    """
    expected = "increasing percentages above 0, up to 100, such as 1,10,100"
    try:
        shares = tuple(float(word) / 100 for word in text.split(","))
    except ValueError:
        raise ConfigError("--phases", text, expected) from None
    if not all(a < b for a, b in zip((0.0, *shares), shares, strict=False)) or shares[-1] > 1:
        raise ConfigError("--phases", text, expected)
    return shares


def percent_of(key: str, value: float) -> float:
    """Parse a percentage into a fraction from 0 to 1. Raises ``ConfigError``."""
    if not 0 <= value <= 100:
        raise ConfigError(key, value, "a number from 0 to 100")
    return value / 100


def _start(arguments: argparse.Namespace) -> int:
    plan = RolloutPlan(
        phases=phases_of(arguments.phases),
        hold_s=seconds_of("--hold", arguments.hold),
        abort_at=percent_of("--abort-at", arguments.abort_at),
        worse_by=percent_of("--worse-by", arguments.worse_by),
        min_devices=arguments.min_devices,
        where=arguments.where,
    )
    _, store = open_state(arguments)
    if arguments.name == FLEET:
        row = start_settings(store, arguments.given, plan)
    else:
        row = start_rollout(store, arguments.name, arguments.given, plan)
    size = row.read_progress().sizes[-1]
    print(f"rollout {row.number} of {_of(row.run)} begins with {quantity(size, 'device')}")
    return 0


def _of(run: str) -> str:
    return f"run {run}" if run else "settings"


def _status(arguments: argparse.Namespace) -> int:
    reports = list(rollout_reports(open_state(arguments)[1], arguments.name, time.time()))
    if arguments.json:
        lines = [json_text(report) for report in reports]
    else:
        lines = [line for report in reports for line in rollout_lines(report)]
        lines = lines or [f"there has been no rollout of {_of(arguments.name)}"]
    print("\n".join(lines), end="\n" if lines else "")
    return 0


def _rollback(arguments: argparse.Namespace) -> int:
    store, why = open_state(arguments)[1], "the operator rolled it back"
    row, was_in_force = store.roll_back(arguments.name, why, arguments.number)
    what = f"rollout {row.number} of {_of(row.run)}"
    if was_in_force:
        print(f"{what} is rolled back, {'order by order' if row.run else 'device by device'}")
    else:
        print(f"{what} is {row.state.replace('_', ' ')} already: there is nothing to roll back")
    return 0
