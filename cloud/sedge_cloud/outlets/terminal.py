"""Formats facts as lines of text for the terminal: ages, local times and a reason for each problem."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from sedge_cloud.facts.records import (
    AgentVersion,
    DeviceFacts,
    Fleet,
    Problem,
    RoundFacts,
    RunFacts,
)
from sedge_cloud.figures.numbers import age, clock, measured, quantity
from sedge_protocol import VERSION
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.topics import SHARDS

# At most this many problems are printed.
PROBLEMS = 20
DEVICES = (
    "device", "state", "since", "heard", "version", "backend", "updates", "before", "after", "strikes",
    "what",
)  # fmt: skip
# The indices of the columns that contain numbers.
NUMBERS = (6, 7, 8, 9)


def open_round(it: RoundFacts, status: str, at: datetime) -> Iterator[str]:
    """Yield lines on an open round: its start, its deadline, and whom it waits for, with the reasons."""
    line = f"{it.round:>5} {it.task:<9} {it.updates:>4}/{it.cohort:<4}"
    if it.state != "open":
        yield f"{line} {status if it.state == 'void' else it.state}"
        return
    since = f" for {age(it.opened, at)}" if it.opened else ""
    yield f"{line} open{since}; {closes(it, at)}"
    for waiting in it.waiting:
        long = f" ({age(waiting.since, at)})" if waiting.since else ""
        yield f"      {waiting.device} {waiting.text}{long}"
    for device, why in it.declined.items():
        yield f"      {device} declined: {why}"
    for device, why in it.rejected.items():
        yield f"      {device} was rejected: {why}"
    if it.whole:
        yield f"      fetched the whole model instead of changes: {', '.join(it.whole)}"
    if it.late:
        yield f"      updates for earlier rounds: {', '.join(it.late)}"


def closes(it: RoundFacts, at: datetime) -> str:
    """Describe the condition or time at which an open round closes."""
    end = clock(it.ends_at, at)
    if it.phase == "grace":
        return f"has its quorum of {it.needed} updates and closes at {end}"
    if it.phase == "offline":
        return f"all online devices have answered; it closes at {end}"
    until = f" or at {clock(it.deadline, at)} with {it.least}" if it.deadline else ""
    return f"closes with {it.needed} updates{until}"


def run_lines(run: RunFacts, at: datetime) -> Iterator[str]:
    """Yield lines on a run's state: its open round, or why it has none, and devices unable to work."""
    if run.open is not None:
        yield from open_round(run.open, run.status, at)
    said = run.rounds[-1].failure if run.rounds else ""
    if run.why and run.why != said:
        yield f"{run.status}: {run.why}"
    for device, what in run.unable.items():
        yield f"no work for {device}: it lacks {what}"


def device_cells(device: DeviceFacts, at: datetime) -> tuple[str, ...]:
    """Return a device's cells for ``DEVICES``; the last one says why it waits, or gives its last error."""
    error = f"{device.error} ({age(device.error_since, at)} ago)" if device.error else ""
    what = f"waits: {device.waits}" if device.waits else error
    if device.state == "never" and device.enrolled and not what:
        what = f"enrolled {age(device.enrolled, at)} ago"
    backend = ",".join(device.backends)
    before, after = (value_text(v, device.metric) for v in (device.before, device.after))
    return (
        device.device, device.state, age(device.since, at), age(device.heard, at), device.version,
        backend, str(device.updates), before, after, str(device.strikes), what,
    )  # fmt: skip


def versions_line(versions: Sequence[AgentVersion]) -> str:
    """Say how many devices run each agent version, and which versions are older than the coordinator's."""
    said = (f"{v.devices} on {v.version}{' (behind)' if v.behind else ''}" for v in versions)
    return f"agents: {', '.join(said)}; this coordinator is {VERSION} (docs/versions.md)"


def problem_line(problem: Problem, at: datetime) -> str:
    """Format one problem, and how long it has lasted."""
    where = f" [run {problem.run}]" if problem.run and problem.run != problem.subject else ""
    since = f" ({age(problem.since, at)})" if problem.since else ""
    return f"{problem.severity:<8} {problem.subject}: {problem.text}{where}{since}"


def problem_lines(problems: Sequence[Problem], at: datetime) -> Iterator[str]:
    """Yield lines for the first ``PROBLEMS`` problems, worst first, then how many more there are."""
    for problem in problems[:PROBLEMS]:
        yield problem_line(problem, at)
    if len(problems) > PROBLEMS:
        yield f"and {len(problems) - PROBLEMS} more"


def headline(facts: Fleet) -> str:
    """Summarise the fleet in one line."""
    running = sum(1 for run in facts.runs if run.status == "running")
    return (
        f"fleet {facts.fleet}, {facts.at.astimezone():%H:%M:%S}: "
        f"{facts.online} of {quantity(facts.active, 'device')} online, "
        f"{running} of {quantity(len(facts.runs), 'run')} running, "
        f"{quantity(len(facts.problems), 'problem')}"
    )


def process_lines(facts: Fleet) -> Iterator[str]:
    """Yield one line for each process that serves the fleet, if there are several."""
    for it in facts.processes if len(facts.processes) > 1 else ():
        leads = ", leads" if it.leads else ""
        since = age(it.since, facts.at)
        yield f"process {it.pid} on {it.host} for {since}: {it.shards} of {SHARDS} shards{leads}"


def value_text(value: float | None, metric: Metric) -> str:
    """Format the value of a metric. Returns an empty string if there is none."""
    return "" if value is None else measured(value, metric)
