"""Renders the status pages as HTML from the facts alone. Their script updates them in place."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import get_args
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment

from sedge_cloud.admin.prepared import prepared_runs
from sedge_cloud.admin.revocation import Revocation
from sedge_cloud.facts.devices import counted
from sedge_cloud.facts.problems import health
from sedge_cloud.facts.records import Code, DeviceFacts, Fleet, RoundFacts
from sedge_cloud.facts.selection import DeviceSelection, choose
from sedge_cloud.figures import pages
from sedge_cloud.figures.numbers import age, clock
from sedge_cloud.outlets.page import charts, digest
from sedge_cloud.outlets.page.actions import Action
from sedge_cloud.outlets.terminal import closes
from sedge_protocol import VERSION

# The page shows at most this many devices at a time, starting with those that need attention.
MAX_DEVICES, MAX_AWAITED, MAX_PROBLEMS = 60, 40, 40
# The page shows at most this many events, groups, and (on the wall page) problems.
MAX_EVENTS, MAX_GROUPS, MAX_ON_WALL = 20, 20, 8
# The search field is omitted if the fleet has at most this many devices.
FEW = 8
# The stream of changes sends a heartbeat at least this often, in seconds. If there is none for three times
# as long, the page says that the coordinator is gone.
BEAT_S = 5.0
FIRST_PAGE = DeviceSelection(limit=MAX_DEVICES)


def status_page(
    facts: Fleet,
    run: str | None = None,
    wanted: DeviceSelection = FIRST_PAGE,
    listed: tuple[Sequence[DeviceFacts], int] | None = None,
    tags: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Render the main page, with some of the devices and the rounds of one run.

    The run is the one named, or else the newest that is running, or else the newest. ``listed`` holds the
    devices to show and their number on all pages; the default is the result of ``chosen``. ``tags`` holds
    the tags of these devices.
    """
    devices, found = listed or chosen(facts, wanted)
    return _drawn(
        "status.html",
        facts,
        f"fleet {facts.fleet}",
        run=facts.shown(run),
        devices=devices,
        found=found,
        wanted=wanted,
        tags=tags or {},
        named_run=run,
        wrong=_wrong(facts),
        to=partial(_link, run, wanted),
        VERSION=VERSION,
        prepared=[name for name in prepared_runs(Path(facts.disk.path)) if not facts.run(name)],
        FEW=FEW,
    )


def device_page(
    facts: Fleet,
    device: DeviceFacts,
    tags: Mapping[str, str],
    version: str = "",
    settings: str = "",
) -> str:
    """Render the page for one device: its state, activity and problems. ``version`` names its bundle."""
    name, run = device.device, facts.shown()
    rounds = run.rounds if run else ()
    parts = [(r, digest.part_in(name, r)) for r in reversed(rounds)]
    return _drawn(
        "device.html",
        facts,
        f"device {name}",
        d=device,
        tags=tags,
        version=version,
        settings=settings,
        work=[
            (run.open, owed)
            for run in facts.runs
            if run.open is not None
            for owed in run.open.waiting
            if owed.device == name
        ],
        wrong=[problem for problem in facts.problems if problem.subject == name],
        parts=[part for part in parts if part[1]],
        partners=run.groups.get(name, ()) if run else (),
    )


def round_page(facts: Fleet, it: RoundFacts) -> str:
    """Render the page for one round: its result, and the devices for which something was unusual."""
    run = facts.run(it.run)
    numbers = [r.round for r in run.rounds] if run else []
    numbers += [run.open.round] if run and run.open else []
    return _drawn(
        "round.html",
        facts,
        f"round {it.round} of {it.run}",
        run=run,
        r=it,
        before=max((n for n in numbers if n < it.round), default=0),
        after=min((n for n in numbers if n > it.round), default=0),
    )


def wall_page(facts: Fleet, run: str | None) -> str:
    """Render the page for a screen on a wall, readable from across the room."""
    return _drawn("wall.html", facts, f"fleet {facts.fleet}", run=facts.shown(run))


def confirm_page(action: Action, csrf: str) -> str:
    """Render the form that confirms an action."""
    template = _environment().get_template("confirm.html")
    return template.render(title=f"{action.verb} {action.name}", action=action, csrf=csrf)


def outcome_page(action: Action, revocation: Revocation) -> str:
    """Render the result of an action, and what the operator still has to do."""
    template = _environment().get_template("outcome.html")
    return template.render(
        title=f"{action.verb} {action.name}", action=action, revocation=revocation
    )


@cache
def script() -> str:
    """Return the page's script."""
    return (files("sedge_cloud.figures") / "templates" / "live.js").read_text("utf-8")


def chosen(
    facts: Fleet, wanted: DeviceSelection, among: Collection[str] | None = None
) -> tuple[list[DeviceFacts], int]:
    """Return the page of wanted devices, and how many there are on all pages.

    If ``among`` is given, other devices are left out. Unless a sort order is given, devices with errors
    come first, then those with warnings, then the ones getting worse fastest. Revoked devices come last.
    """
    rank = {p.subject: 1 for p in facts.problems}
    rank.update((p.subject, 0) for p in facts.problems if p.severity == "error")
    ordered = sorted(  # the sort is stable, so devices that compare equal stay sorted by id
        (device for device in facts.devices if among is None or device.device in among),
        key=lambda d: (d.state == "revoked", rank.get(d.device, 2), d.change or 0.0),
    )
    return choose(ordered, wanted)


def _wrong(facts: Fleet) -> dict[str, list[str]]:
    """Return the texts of the problems, by subject."""
    found: dict[str, list[str]] = {}
    for problem in facts.problems:
        found.setdefault(problem.subject, []).append(problem.text)
    return found


def _drawn(name: str, facts: Fleet, title: str, **more: object) -> str:
    ages = {"ago": partial(age, now=facts.at), "at": partial(clock, now=facts.at)}
    health_now = health(facts.problems)
    template = _environment().get_template(name)
    return template.render(
        facts=facts, title=title, health=health_now, BEAT_S=BEAT_S, **ages, **more
    )


@cache
def _environment() -> Environment:
    return pages.environment(
        {
            "charts": charts,
            "digest": digest,
            "counted": counted,
            "closes": closes,
            "OF_DEVICES": {code for code in get_args(Code) if code.startswith("device_")}
            - {"device_pending", "device_accountless"},  # these are not about enrolled devices
            "MAX_AWAITED": MAX_AWAITED,
            "MAX_PROBLEMS": MAX_PROBLEMS,
            "MAX_EVENTS": MAX_EVENTS,
            "MAX_GROUPS": MAX_GROUPS,
            "MAX_ON_WALL": MAX_ON_WALL,
        }
    )


def _link(run: str | None, wanted: DeviceSelection, **changes: object) -> str:
    """Return the query string of the same page, with some parameters changed."""
    fields = {"run": run, **msgspec.structs.asdict(wanted), "limit": None, **changes}
    return f"?{urlencode({key: value for key, value in fields.items() if value})}"
