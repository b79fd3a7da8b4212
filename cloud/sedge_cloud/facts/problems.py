"""Derives a fleet's problems from its facts: stuck rounds, lost or hostile devices, a full disk.

All rules are defined here, and each names its code (records.py). Commands, status page, alerts and notices
all show the same list.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from sedge_cloud.facts.devices import refusals
from sedge_cloud.facts.open_rounds import NEVER, last_message_dropped
from sedge_cloud.facts.records import (
    Code,
    DeviceFacts,
    Fleet,
    Problem,
    RolloutFacts,
    RoundFacts,
    RunFacts,
    Severity,
    Waiting,
)
from sedge_cloud.figures.numbers import clock, listed, quantity
from sedge_cloud.runs.terms import its_limit
from sedge_cloud.store.schema import FAILED, RUNNING
from sedge_protocol.host.blobs import FREE_FRACTION, FREE_MAX_BYTES
from sedge_protocol.wire.frame import LEAST_PACKET_BYTES

ENOUGH_FREE_BYTES = 10**9
SOON_FULL_DAYS = 30.0
# How long an error in the coordinator, or a dropped message, is listed as a problem.
RECENT = timedelta(minutes=10)
# While a run is active, an offline device that no round is waiting for is reported after this long.
LOST = timedelta(minutes=10)
# A device that has never connected is reported this long after its enrolment, to allow time for setting it
# up.
DEPLOYED = timedelta(hours=1)
# A device is reported as getting worse if its accuracy before training falls by more than this.
WORSE = 0.05
# A round is stuck when it takes this many times as long as usual, and at least this many seconds.
STUCK_TIMES, STUCK_S = 5.0, 60.0
# At most this many devices are named as missing from a quorum, or as never connected.
MAX_NAMED = 4
# A device with one of these codes is working; with any other code, no update is expected for now.
_COMING: frozenset[Code] = frozenset({"device_working", "device_slow"})
_ABSENT: Mapping[Code, str] = {
    "device_lost": "is offline",
    "device_never": "has never connected",
    "device_unheard": "is ignored",
    "device_unable": "cannot do the work",
    "device_waits": "waits",
}
_MILD: frozenset[Code] = frozenset({"device_waits", "device_slow"})


def problems(facts: Fleet, of_devices: Iterable[Problem] | None = None) -> tuple[Problem, ...]:
    """Return all problems: errors first, and the longest-lasting first among equals.

    ``of_devices`` is the result of ``device_problems``, if it is known.
    """
    found = [*_of_coordinator(facts), *_of_disk(facts)]
    named = set[tuple[str, str]]()
    found += _of_rollout(facts.settings, "settings")
    for run in reversed(facts.runs):  # newest first: only the newest run's failure is reported
        found += _of_run(facts, run, newest=run is facts.runs[-1])
    for problem in found:
        named.add((problem.subject, problem.code))
    lasting = device_problems(facts) if of_devices is None else of_devices
    found += (p for p in lasting if (p.subject, p.code) not in named)
    return tuple(sorted(found, key=lambda p: (p.severity != "error", p.since or facts.at)))


def health(found: Sequence[Problem]) -> str:
    """Summarise the problems: ``Everything works``, ``1 error, 3 warnings``."""
    errors = sum(problem.severity == "error" for problem in found)
    counts = ((errors, "error"), (len(found) - errors, "warning"))
    words = [quantity(n, what) for n, what in counts if n]
    return ", ".join(words) or "Everything works"


def _problem(
    code: Code,
    subject: str,
    text: str,
    since: datetime | None = None,
    run: str = "",
    severity: Severity = "error",
) -> Problem:
    return Problem(code=code, severity=severity, subject=subject, run=run, text=text, since=since)


def _of_coordinator(facts: Fleet) -> Iterator[Problem]:
    it = facts.coordinator
    if not it.running:
        busy: Severity = "error" if any(r.status == RUNNING for r in facts.runs) else "warning"
        text = "is not running or hangs: it shows no sign of life"
        yield _problem("coordinator_silent", "coordinator", text, it.heard, severity=busy)
    elif not it.link:
        text = f"cannot reach its broker: {it.link_error or 'no connection yet'}"
        yield _problem("broker_down", "coordinator", text, it.link_since)
    elif 0 < it.max_packet < LEAST_PACKET_BYTES:
        needed = f"needs a broker that accepts messages of {LEAST_PACKET_BYTES} bytes"
        text = f"{needed}: {its_limit(it.max_packet)}"
        yield _problem("broker_limit", "coordinator", text, it.link_since)
    if it.error and it.error_since is not None and facts.at - it.error_since < RECENT:
        yield _problem("coordinator_error", "coordinator", it.error, it.error_since)


def _of_disk(facts: Fleet) -> Iterator[Problem]:
    disk = facts.disk
    free = f"{disk.free / 1e6:,.0f} MB are free in {disk.path}"
    if disk.free < min(FREE_MAX_BYTES, FREE_FRACTION * disk.total):  # as in blobs.py
        yield _problem("disk_full", "disk", f"is full: {free}, and updates are refused")
    elif disk.free < ENOUGH_FREE_BYTES:
        yield _problem("disk_low", "disk", f"is low: {free}", severity="warning")
    elif disk.full_in_days is not None and disk.full_in_days < SOON_FULL_DAYS:
        text = f"will be full in {disk.full_in_days:.0f} days at its current growth: {free}"
        yield _problem("disk_low", "disk", text, severity="warning")


def _of_rollout(it: RolloutFacts | None, subject: str, run: str = "") -> Iterator[Problem]:
    if it is not None and it.state == "aborted":
        text = f"rollout {it.number} was aborted: {it.why}"
        yield _problem("rollout_aborted", subject, text, it.ended, run, "warning")


def _of_run(facts: Fleet, run: RunFacts, newest: bool) -> Iterator[Problem]:
    if run.status == FAILED and newest:
        yield _problem("run_failed", run.run, f"has failed: {run.why}", run=run.run)
    if run.status != RUNNING:
        return
    if run.why:
        since = run.rounds[-1].closed if run.rounds else run.created
        yield _problem("run_waits", run.run, run.why, since, run.run, "warning")
    yield from _of_rollout(run.rollout, run.run, run.run)
    it = run.open
    if it is not None:
        yield from _of_open(facts, it)
        yield from refusals(it.run, it.round, None, it.declined, it.rejected, {})
    for device, what in run.unable.items():
        yield _problem("device_unable", device, f"has no work: it lacks {what}", None, run.run)


def _of_open(facts: Fleet, it: RoundFacts) -> Iterator[Problem]:
    coming = sum(1 for w in it.waiting if w.code in _COMING)
    where = f"round {it.round}"
    if facts.coordinator.link and it.updates + coming < it.needed:
        text = _below_quorum(it, it.updates + coming, facts.at)
        yield _problem("round_below_quorum", it.run, text, it.opened, it.run)
    open_s = (facts.at - it.opened).total_seconds() if it.opened else 0.0
    if it.extended:
        text = f"{where} passed its deadline with fewer than {it.least} updates"
        yield _problem("round_stuck", it.run, text, it.opened, it.run)
    elif it.usual_s is not None and open_s > max(STUCK_S, STUCK_TIMES * it.usual_s):
        text = (
            f"{where} has been open far longer than the {it.usual_s:.0f} s that rounds usually take"
        )
        yield _problem("round_stuck", it.run, text, it.opened, it.run)
    for waiting in it.waiting:
        yield from _of_waiting(it, waiting)


def _below_quorum(it: RoundFacts, reachable: int, now: datetime) -> str:
    """Say which missing devices keep the round from reaching its quorum, and when it closes anyway."""
    absent = [f"{name} declined" for name in it.declined]
    absent += [f"{name} was rejected" for name in it.rejected]
    absent += [f"{w.device} {_ABSENT[w.code]}" for w in it.waiting if w.code in _ABSENT]
    if len(absent) > MAX_NAMED:
        absent[MAX_NAMED:] = [f"{len(absent) - MAX_NAMED} more are missing"]
    enough = reachable >= it.least
    then = "closes with the updates that it has" if enough else f"keeps waiting for {it.least}"
    end = f" At {clock(it.deadline, now)} it {then}." if it.deadline else ""
    return (
        f"round {it.round} cannot reach its quorum of {it.needed} updates: {listed(absent)}.{end}"
    )


def _of_waiting(it: RoundFacts, waiting: Waiting) -> Iterator[Problem]:
    code = waiting.code
    if code in ("device_working", "coordinator_silent"):
        return
    waits = "continues without it" if code == "device_waits" else "waits for it"
    text = f"{waiting.text}; round {it.round} {waits}"
    severity: Severity = "warning" if code in _MILD else "error"
    yield _problem(code, waiting.device, text, waiting.since, it.run, severity)


def device_problems(facts: Fleet) -> Iterator[Problem]:
    """Yield the problems that concern devices, whether or not a round waits for them."""
    running = [run for run in facts.runs if run.status == RUNNING]
    if running:
        yield from _never_connected(facts)
    short = any(run.why for run in running)
    names = {run.run for run in running}
    for device in facts.devices:
        yield from _trouble(facts, device, names)
        if device.state == "revoked":
            continue
        if device.change is not None and device.change < -WORSE:
            less = "points less" if device.metric.share else "% worse"
            text = f"is getting worse: {-100 * device.change:.0f} {less} before training than it once had"
            yield _problem("device_worse", device.device, text, severity="warning")
        if _is_unheard(facts, device):
            text = f"is ignored: {device.error}"
            yield _problem("device_unheard", device.device, text, device.error_since)
        if running and device.state == "online" and device.waits:
            yield _problem(
                "device_waits", device.device, f"waits: {device.waits}", severity="warning"
            )
        if running and _is_missed(facts, device, short):
            yield _problem(
                "device_lost", device.device, "is offline", device.since, severity="warning"
            )


def _trouble(facts: Fleet, device: DeviceFacts, running: Container[str]) -> Iterator[Problem]:
    """Yield the problem if a device's last update did not fully count, in a running or the newest run."""
    it = device.trouble
    if it is None or _is_over(facts, device, it):
        return
    if it.run in running:
        yield it
    elif facts.runs and it.run == facts.runs[-1].run:  # nothing waits for the device now
        yield msgspec.structs.replace(it, severity="warning")


def _never_connected(facts: Fleet) -> Iterator[Problem]:
    """Yield a problem for each device that is overdue, or a single one if there are many.

    Whole fleets are often enrolled before deployment. In large fleets some devices are only counted, and
    the time since their enrolment is unknown.
    """
    never = [device for device in facts.devices if device.state == "never"]
    overdue = [device for device in never if _is_overdue(facts, device)]
    count = len(overdue) + facts.states["never"] - len(never)
    if count <= MAX_NAMED:
        for device in overdue:
            name, since = device.device, device.enrolled
            yield _problem("device_never", name, NEVER, since, severity="warning")
    else:
        text = f"{count} enrolled devices are not yet deployed: none of them has ever connected"
        yield _problem("device_never", "devices", text, severity="warning")


def _is_overdue(facts: Fleet, device: DeviceFacts) -> bool:
    """Return True if a device that has never connected has had time to do so."""
    recent = device.enrolled is not None and facts.at - device.enrolled < DEPLOYED
    return not (recent or _is_unheard(facts, device))


def _is_unheard(facts: Fleet, device: DeviceFacts) -> bool:
    """Return True if a message from the device was dropped recently."""
    recent = device.error_since is not None and facts.at - device.error_since < RECENT
    return recent and (device.state == "never" or last_message_dropped(device))


def _is_over(facts: Fleet, device: DeviceFacts, trouble: Problem) -> bool:
    """Return True if a problem no longer needs reporting because its device was revoked a while ago."""
    is_old = trouble.since is None or facts.at - trouble.since > RECENT
    return device.state == "revoked" and is_old


def _is_missed(facts: Fleet, device: DeviceFacts, short: bool) -> bool:
    if device.state != "offline" or last_message_dropped(device):
        return False
    return short or device.since is None or facts.at - device.since > LOST
