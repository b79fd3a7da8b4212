"""The devices that ask to join the fleet by a token, and the tokens that have recently refused one."""

from collections.abc import Iterator

from sedge_cloud.facts.records import Code, Problem, when
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import JoinRow

# More devices than this are summed up in one line.
MAX_NAMED = 8
# An accepted device has its account at the broker within this many seconds.
ACCOUNT_S = 30.0


def join_problems(store: Store, now: float) -> Iterator[Problem]:
    """Joins that an operator has to decide or repair, at a time on the wall clock."""
    joins = store.joins(["pending", "accepted"])
    pending = [join for join in joins if join.state == "pending"]
    late = [join for join in joins if join.state == "accepted" and now > join.asked + ACCOUNT_S]
    how = "sedge-cloud device accept {0}` or `device refuse {0}`"
    yield from _named("device_pending", pending, f"asks to join: `{how}")
    text = "is accepted but has no account at the broker: `sudo sedge-cloud device accept {0}`"
    yield from _named("device_accountless", late, text)
    for token in store.refusing_tokens(now):
        since = when(token.refused_at)
        yield Problem(
            code="token_refused", severity="warning", subject=token.token, text=token.refused, since=since
        )  # fmt: skip


def _named(code: Code, joins: list[JoinRow], text: str) -> Iterator[Problem]:
    if len(joins) > MAX_NAMED:
        since, text = when(joins[0].asked), f"{len(joins)} of them: {text.format('--all')}"
        yield Problem(code=code, severity="warning", subject="devices", text=text, since=since)
        return
    for join in joins:
        said, since = text.format(join.device), when(join.asked)
        yield Problem(code=code, severity="warning", subject=join.device, text=said, since=since)
