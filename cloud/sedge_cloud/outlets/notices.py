"""Sends notices of problems, so that nobody has to watch: by a webhook, or by the operator's command.

New problems in a reading of the facts are sent from a separate thread (supervisor.py). A receiver that
hangs or fails holds up only this thread, and is logged once until it works again.
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

# The problems worth waking somebody for; all others are on the page.
NOTIFY_CODES: frozenset[Code] = frozenset({
    "broker_down", "broker_limit", "coordinator_silent", "coordinator_error", "disk_low", "disk_full",
    "run_failed", "rollout_aborted", "round_stuck", "round_below_quorum", "device_lost",
})  # fmt: skip
TIMEOUT_S = 20.0
# A fleet that loses its network loses every device: the first notices say how many more there are.
MAX_NOTICES = 5
# urllib's own errors are OSErrors; those for a malformed answer are not.
_FAILURES = OSError, http.client.HTTPException, subprocess.SubprocessError, ValueError
_log = logging.getLogger("sedge.notify")


class Notice(msgspec.Struct, frozen=True):
    """The JSON that a receiver gets; ``more`` further problems of this moment get no separate notice."""

    fleet: str
    problem: Problem
    text: str
    more: int = 0


class Notices:
    """Sends the receivers that cloud.toml names a notice of each problem that has begun."""

    def __init__(self, cloud: CloudConfig) -> None:
        self._fleet = cloud.fleet
        self._onsets = Onsets(cloud.notify.every_s)
        self._send = Sender(cloud.notify)

    def __call__(self, facts: Fleet) -> None:
        """Take a reading."""
        for notice in self.due(facts.problems, time.monotonic()):
            self._send(notice)

    def due(self, problems: Iterable[Problem], now: float) -> list[Notice]:
        """The notices of a reading; ``now`` in seconds."""
        seen: dict[Key, Problem] = {
            (p.code, p.subject): p for p in problems if p.code in NOTIFY_CODES
        }
        new = self._onsets.new(seen, now)
        more = max(0, len(new) - MAX_NOTICES)
        return [Notice(self._fleet, p, f"{p.subject}: {p.text}", more) for p in new[:MAX_NOTICES]]


class Sender:
    """Sends notices; a receiver's failure is logged once, until it works again."""

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
                    _log.error("notify.%s does not take notices: %s", name, exc)
                self._failed.add(name)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a receiver must not choose which address in our network we call."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Make no other request, so that a redirect counts as an error."""


def _post(url: str, body: bytes) -> None:
    """POST JSON without following redirects. Raises ``OSError`` or ``HTTPException`` for any refusal."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
        pass


def _call(words: tuple[str, ...], body: bytes) -> None:
    """Run a command. Raises ``OSError`` or ``SubprocessError`` unless it succeeds."""
    subprocess.run(
        words, input=body, capture_output=True, timeout=TIMEOUT_S, check=True, close_fds=True
    )
