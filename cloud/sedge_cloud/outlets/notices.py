"""Sends notices of problems via a webhook or the operator's command, so that nobody has to watch.

A separate thread (supervisor.py) reads the facts and sends the problems that are new in each reading. A
receiver that hangs or fails holds up only this thread. Its failure is logged only once until it works
again.
"""

import http.client
import logging
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import IO

import msgspec

from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import Code, Fleet, Problem
from sedge_cloud.outlets.onsets import Key, Onsets
from sedge_cloud.outlets.settings import NotifyConfig

# The problems that are worth waking somebody up for. The others only appear on the page.
NOTIFY_CODES: frozenset[Code] = frozenset({
    "broker_down", "broker_limit", "coordinator_silent", "coordinator_error", "disk_low", "disk_full",
    "run_failed", "rollout_aborted", "round_stuck", "round_below_quorum", "device_lost",
})  # fmt: skip
TIMEOUT_S = 20.0
# If the fleet loses its network, every device has a problem. Only the first few are sent as notices, and
# these say how many more there are.
MAX_NOTICES = 5
# All errors that a request may raise: urllib's own are OSErrors, but the ones for a malformed answer are
# not.
_FAILURES = OSError, http.client.HTTPException, subprocess.SubprocessError, ValueError
_log = logging.getLogger("sedge.notify")


class Notice(msgspec.Struct, frozen=True):
    """The JSON that a receiver gets.

    ``more`` counts further problems in the same reading, for which no notice is sent.
    """

    fleet: str
    problem: Problem
    text: str
    more: int = 0


class Notices:
    """Notifies the receivers configured in cloud.toml of each problem that has begun."""

    def __init__(self, cloud: CloudConfig) -> None:
        self._fleet = cloud.fleet
        self._onsets = Onsets(cloud.notify.every_s)
        self._send = Sender(cloud.notify)

    def __call__(self, facts: Fleet) -> None:
        """Send the notices that a new reading of the facts calls for."""
        for notice in self.due(facts.problems, time.monotonic()):
            self._send(notice)

    def due(self, problems: Iterable[Problem], now: float) -> list[Notice]:
        """Return the notices that a new reading's problems call for; ``now`` is in seconds."""
        seen: dict[Key, Problem] = {
            (p.code, p.subject): p for p in problems if p.code in NOTIFY_CODES
        }
        new = self._onsets.new(seen, now)
        more = max(0, len(new) - MAX_NOTICES)
        return [Notice(self._fleet, p, f"{p.subject}: {p.text}", more) for p in new[:MAX_NOTICES]]


class Sender:
    """Sends notices to all receivers. A receiver's failure is logged only once until it works again."""

    def __init__(self, settings: NotifyConfig) -> None:
        self._ways: dict[str, Callable[[bytes], None]] = {}
        if settings.webhook is not None:
            url = settings.webhook
            self._ways["webhook"] = lambda body: _post(url, body)
        if settings.command:
            words = settings.command
            self._ways["command"] = lambda body: _call(words, body)
        self._failed: set[str] = set()

    def __call__(self, notice: Notice) -> None:
        """Send one notice to every receiver."""
        body = msgspec.json.encode(notice)
        for name, way in self._ways.items():
            try:
                way(body)
                self._failed.discard(name)
            except _FAILURES as exc:
                if name not in self._failed:
                    _log.error("notify.%s does not accept notices: %s", name, exc)
                self._failed.add(name)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: a receiver must not choose which address in our network we connect to."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Return None, so that urllib makes no second request and reports the redirect as an error."""


def _post(url: str, body: bytes) -> None:
    """POST JSON without following redirects. Raises ``OSError`` or ``HTTPException`` if refused."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
        pass


def _call(words: tuple[str, ...], body: bytes) -> None:
    """Run a command. Raises ``OSError`` or ``SubprocessError`` unless it succeeds."""
    subprocess.run(
        words, input=body, capture_output=True, timeout=TIMEOUT_S, check=True, close_fds=True
    )
