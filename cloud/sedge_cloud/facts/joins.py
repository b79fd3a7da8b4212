"""Finds problems with joining and certificates: waiting devices, refused tokens, expiring certificates."""

import time
from collections.abc import Iterator

from sedge_cloud.facts.records import Code, Problem, when
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import JoinRow

# If there are more devices than this, a single line summarises them.
MAX_NAMED = 8
# An accepted device normally gets its broker account within this many seconds.
ACCOUNT_S = 30.0


def join_problems(store: Store, now: float) -> Iterator[Problem]:
    """Yield the joins that the operator has to decide on or repair, as of ``now`` (wall clock)."""
    joins = store.joins(["pending", "accepted"])
    pending = [join for join in joins if join.state == "pending"]
    late = [join for join in joins if join.state == "accepted" and now > join.asked + ACCOUNT_S]
    how = "sedge-cloud device accept {0}` or `device refuse {0}`"
    yield from _named("device_pending", pending, f"asks to join: `{how}")
    text = "is accepted but has no account at the broker: on the broker's host, `sudo sedge-cloud"
    text += " device accept {0}`"
    yield from _named("device_accountless", late, text)
    for token in store.refusing_tokens(now):
        since = when(token.refused_at)
        yield Problem(
            code="token_refused", severity="warning", subject=token.token, text=token.refused, since=since
        )  # fmt: skip


def certificate_problems(store: Store, now: float) -> Iterator[Problem]:
    """Yield certificates that expire soon because their devices have not connected for a long time."""
    for row in store.certificates_late(now):
        text = "has not connected to get its next certificate; the current one expires"
        if row.until < now:
            back = f"`sedge-cloud device token add --device {row.name}` creates a token that lets it rejoin"
            text = f"has a certificate that the broker refuses: {back}; it ended"
        day = time.strftime("%F", time.gmtime(row.until))
        yield Problem(
            code="device_certificate", severity="warning", subject=row.name, text=f"{text} on {day}"
        )


def _named(code: Code, joins: list[JoinRow], text: str) -> Iterator[Problem]:
    if len(joins) > MAX_NAMED:
        since, text = when(joins[0].asked), f"{len(joins)} of them: {text.format('--all')}"
        yield Problem(code=code, severity="warning", subject="devices", text=text, since=since)
        return
    for join in joins:
        said, since = text.format(join.device), when(join.asked)
        yield Problem(code=code, severity="warning", subject=join.device, text=said, since=since)
