"""The log of problems: what begins and ends is told once, with its severity, and a flood is counted."""

import logging

from sedge_cloud.facts.records import Code, Problem, Severity
from sedge_cloud.outlets.problem_log import MOST, QUIET_S, ProblemLog


def problem(subject: str, code: Code = "device_lost", severity: Severity = "error") -> Problem:
    """A problem of a run."""
    return Problem(code=code, severity=severity, subject=subject, run="one", text="is offline")


def test_a_problem_is_told_when_it_lasts_and_when_it_ends() -> None:
    log = ProblemLog()
    slow = problem("pi-2", "device_slow", "warning")
    assert log.lines([problem("pi-1")], 0) == []  # perhaps it is back at the next look
    assert log.lines([problem("pi-1"), slow], 2) == [
        (logging.ERROR, "pi-1: is offline (device_lost, run one)")
    ]
    assert log.lines([problem("pi-1"), slow], 4) == [
        (logging.WARNING, "pi-2: is offline (device_slow, run one)")
    ]
    assert log.lines([slow], 6) == [(logging.INFO, "pi-1: no longer device_lost")]
    back = [problem("pi-1"), slow]
    for at, seen in ((8, back), (10, back), (QUIET_S + 6, [slow])):
        assert log.lines(seen, at) == []  # one comes and goes again, the other stays


def test_a_fleet_without_network_is_a_few_lines() -> None:
    log = ProblemLog()
    everyone = [problem(f"pi-{i}") for i in range(1000)]
    log.lines(everyone, 0)
    more = 1000 - MOST
    begun, ended = log.lines(everyone, 2), log.lines([], 4)
    assert len(begun) == len(ended) == MOST + 1
    assert begun[-1] == (logging.ERROR, f"{more} more problems have begun: device_lost {more}")
    assert ended[-1] == (logging.INFO, f"{more} more problems have ended: device_lost {more}")
