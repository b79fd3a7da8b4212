"""The status page as HTML, from the facts alone; its script only swaps it in place when they change."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import get_args

from jinja2 import Environment

from sedge_cloud.admin.revocation import Revocation
from sedge_cloud.facts.records import DeviceFacts, DeviceState, Fleet
from sedge_cloud.facts.selection import Wanted, choose
from sedge_cloud.figures import pages
from sedge_cloud.figures.numbers import age, clock
from sedge_cloud.outlets.page import charts
from sedge_cloud.outlets.page.actions import Action
from sedge_cloud.outlets.terminal import closes

# Of larger fleets the page shows so many devices at a time, those that need a look first.
MAX_DEVICES, MAX_AWAITED, MAX_PROBLEMS = 60, 40, 40
# The stream of changes says at least this often, in seconds, that the coordinator is there. The page
# believes so for three such times.
BEAT_S = 5.0
FIRST_PAGE = Wanted(limit=MAX_DEVICES)


def status_page(
    facts: Fleet,
    run: str | None = None,
    wanted: Wanted = FIRST_PAGE,
    listed: tuple[Sequence[DeviceFacts], int] | None = None,
    tags: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The page with some devices, and one run's rounds.

    That is the named one, else the newest that is running, else the newest. ``listed`` are the wanted
    devices, by default as ``chosen`` finds them, and how many there are on all pages; ``tags`` are theirs.
    """
    shown = facts.shown(run)
    devices, found = listed or chosen(facts, wanted)
    return _environment().get_template("status.html").render(
        title=f"fleet {facts.fleet}",
        facts=facts,
        run=shown,
        devices=devices,
        found=found,
        wanted=wanted,
        tags=tags or {},
        states=get_args(DeviceState),
        named_run=run,
        with_problems={problem.subject for problem in facts.problems},
        ago=partial(age, now=facts.at),
        at=partial(clock, now=facts.at),
        closes=closes,
        MAX_AWAITED=MAX_AWAITED,
        MAX_PROBLEMS=MAX_PROBLEMS,
        BEAT_S=BEAT_S,
    )  # fmt: skip


def confirm_page(action: Action, csrf: str) -> str:
    """The form that confirms an action."""
    template = _environment().get_template("confirm.html")
    return template.render(title=f"{action.verb} {action.name}", action=action, csrf=csrf)


def outcome_page(action: Action, revocation: Revocation) -> str:
    """The result of an action, and what is left to do."""
    template = _environment().get_template("outcome.html")
    return template.render(
        title=f"{action.verb} {action.name}", action=action, revocation=revocation
    )


@cache
def script() -> str:
    """The page's script."""
    return (files("sedge_cloud.figures") / "templates" / "live.js").read_text("utf-8")


@cache
def _environment() -> Environment:
    return pages.environment({"charts": charts})


def chosen(
    facts: Fleet, wanted: Wanted, among: Collection[str] | None = None
) -> tuple[list[DeviceFacts], int]:
    """The wanted devices, ``among`` these if any are named, and how many there are on all pages.

    First come those with errors, with warnings, those that get worse most; revoked ones last.
    """
    rank = {p.subject: 1 for p in facts.problems}
    rank.update((p.subject, 0) for p in facts.problems if p.severity == "error")
    ordered = sorted(
        (device for device in facts.devices if among is None or device.device in among),
        key=lambda d: (d.state == "revoked", rank.get(d.device, 2), d.change or 0.0, d.device),
    )
    return choose(ordered, wanted)
