"""The commands for devices that join with a token: ``device token``, ``accept``, ``refuse``."""

import argparse
import time
from collections.abc import Callable

from sedge_cloud.admin import joining
from sedge_cloud.admin.commands import at_least_one, open_state, seconds_of
from sedge_cloud.admin.enrolment import reload_broker
from sedge_cloud.admin.revocation import SIGHUP
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import when
from sedge_cloud.outlets.tables import table, terminal_width
from sedge_cloud.store.rows import TokenRow
from sedge_protocol.errors import ConfigError, NotInstalled
from sedge_protocol.host.command_line import Commands, Parser
from sedge_protocol.host.console import json_text


def add_join_commands(commands: Commands) -> None:
    """Add the commands for tokens and for devices that are waiting to join."""
    parser: Parser = commands.add_parser(
        "token", help="join tokens, which let devices create their own secrets"
    )
    verbs = parser.add_commands()
    add = verbs.add_parser(
        "add",
        help="create a token and print its line for `sedge-edge join`",
        examples=["sedge-cloud device token add --count 20 --tags site=lab --expires 2d"],
    )
    help_text = "how many devices may join with it (default: 1)"
    add.add_argument("--count", type=at_least_one, metavar="N", default=1, help=help_text)
    help_text = "tags for these devices"
    add.add_argument("--tags", nargs="+", metavar="KEY=VALUE", default=[], help=help_text)
    help_text = "how long it is valid, by this machine's clock (default: 1h)"
    add.add_argument("--expires", metavar="TIME", default="1h", help=help_text)
    help_text = "admit devices at once; otherwise each waits for `device accept`"
    add.add_argument("--accept", action="store_true", help=help_text)
    help_text = "only for this device: a new one, or one that needs a new secret"
    add.add_argument("--device", metavar="NAME", default="", help=help_text)
    help_text = "also draw the line as a QR code (pip install 'sedge-fl[qr]')"
    add.add_argument("--qr", action="store_true", help=help_text)
    add.set_defaults(call=_add)
    listed = verbs.add_parser(
        "list", help="every token, and how many devices have joined with it",
        examples=["sedge-cloud device token list", "sedge-cloud device token list --json"],
    )  # fmt: skip
    listed.add_argument("--json", action="store_true", help="one JSON object per token")
    listed.set_defaults(call=_list)
    revoke = verbs.add_parser(
        "revoke", help="revoke a token: no more devices can join with it",
        examples=["sedge-cloud device token revoke join-0123456789ab"],
    )  # fmt: skip
    revoke.add_argument("token")
    revoke.set_defaults(call=_revoke)
    accept = commands.add_parser(
        "accept", help="let waiting devices join",
        examples=["sedge-cloud device accept pi-1", "sedge-cloud device accept --all"],
    )  # fmt: skip
    _add_waiting(accept)
    accept.set_defaults(call=_accept)
    refuse = commands.add_parser(
        "refuse", help="turn waiting devices away",
        examples=["sedge-cloud device refuse pi-1", "sedge-cloud device refuse --all"],
    )  # fmt: skip
    _add_waiting(refuse)
    refuse.set_defaults(call=_refuse)


def _add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="*")
    parser.add_argument("--all", action="store_true", help="all devices that are waiting")


def _add(arguments: argparse.Namespace) -> int:
    # This comes first so that no token has been created if it raises.
    draw = _qr_code() if arguments.qr else None
    cloud, store = open_state(arguments)
    tags = dict(_tag(word) for word in arguments.tags)
    row = joining.make_token(
        store, cloud, arguments.count, seconds_of("--expires", arguments.expires, 1), tags,
        arguments.accept, arguments.device,
    )  # fmt: skip
    _reload(cloud)
    for line in joining.by_hand(cloud, row):
        print(line)
    text = joining.token_text(store, cloud, row)
    if draw is not None:
        draw(text)
    print(text)
    return 0


def _tag(word: str) -> tuple[str, str]:
    key, sign, value = word.partition("=")
    if not sign or not value:
        raise ConfigError("--tags", word, "KEY=VALUE")
    return key, value


def _reload(cloud: CloudConfig) -> None:
    reload_broker(cloud)
    if cloud.broker.device_password_file is not None and cloud.broker.reload is None:
        print(SIGHUP)


def _qr_code() -> Callable[[str], None]:
    """Return a function that prints text as a QR code. Raises ``ConfigError`` if segno is missing."""
    try:
        import segno
    except ModuleNotFoundError as exc:
        raise NotInstalled("--qr", "segno", "qr") from exc

    def draw(text: str) -> None:
        segno.make(text, micro=False).terminal(compact=True)

    return draw


def _list(arguments: argparse.Namespace) -> int:
    _, store = open_state(arguments)
    now, uses = time.time(), store.uses()
    rows = [("token", "state", "joined", "until (UTC)", "")]
    for row in store.tokens():
        used = uses.get(row.token, 0)
        state, tags = _state(row, used, now), row.read_tags()
        if arguments.json:
            said = {"token": row.token, "state": state, "used": used, "count": row.uses}
            more = {
                "expires": when(row.expires),
                "accepts": row.accepts,
                "device": row.device,
                "tags": tags,
            }
            print(json_text({**said, **more, "refused": row.refused}))
            continue
        until = time.strftime("%F %R", time.gmtime(row.expires))
        words = ["at once"] if row.accepts else []
        words += [f"for {row.device}"] if row.device else []
        words += [f"{key}={value}" for key, value in tags.items()]
        rows.append((row.token, state, f"{used} of {row.uses}", until, "  ".join(words)))
    if rows[1:]:
        print("\n".join(table(rows, width=terminal_width())))
    return 0


def _state(row: TokenRow, used: int, now: float) -> str:
    if row.revoked:
        return "revoked"
    if now >= row.expires:
        return "expired"
    return "used up" if used >= row.uses else "good"


def _revoke(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    store.revoke_token(arguments.token)
    print(
        f"{arguments.token} is revoked: no device can join with it, not even those already waiting"
    )
    joining.settle(store, cloud)
    if cloud.broker.device_password_file is None:
        print("Remove its account from the broker.")
    elif cloud.broker.reload is None:
        print(SIGHUP)
    return 0


def _accept(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    accepted = {join.device for join in store.joins(["accepted"])}
    names = [*arguments.device]
    if names and arguments.all:
        raise ConfigError("device accept", " ".join(names), "ids of devices, or --all")
    waiting = [join.device for join in store.joins(["pending"])]
    for name in waiting if arguments.all else names:
        # An accepted device lacks only its account, because an earlier attempt to create it failed.
        if name not in accepted:
            store.accept_join(name)
    joining.require_settled(store, cloud)
    print(f"accepted: {' '.join(waiting if arguments.all else names) or 'none'}")
    if names and cloud.broker.device_password_file is not None and cloud.broker.reload is None:
        print(SIGHUP)
    return 0


def _refuse(arguments: argparse.Namespace) -> int:
    _, store = open_state(arguments)
    names = [*arguments.device]
    if bool(names) == arguments.all:
        raise ConfigError("device refuse", " ".join(names), "ids of devices, or --all")
    for name in [join.device for join in store.joins(["pending"])] if arguments.all else names:
        store.refuse_join(name)
        print(f"{name} is refused; it may ask again with another token")
    return 0
