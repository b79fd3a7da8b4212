"""``device rotate``: gives devices new secrets over their existing connections, without physical access."""

import argparse
import time
from collections.abc import Collection

from sedge_cloud.admin.commands import open_state
from sedge_cloud.config import CloudConfig
from sedge_cloud.figures.numbers import quantity
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import DeviceRow
from sedge_cloud.store.selector import Condition, parse
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.command_line import Commands
from sedge_protocol.wire.joining import RENEWS


def add_rotate_command(commands: Commands) -> None:
    """Add ``device rotate``."""
    rotate = commands.add_parser(
        "rotate", help="give devices new secrets over their existing connections",
        examples=[
            "sedge-cloud device rotate pi-1 pi-2",
            "sedge-cloud device rotate --where site=lab",
            "sedge-cloud device rotate",
        ],
    )  # fmt: skip
    rotate.add_argument(
        "device", nargs="*", help="without ids: list devices that still have to change theirs"
    )
    help_text = "instead of ids: all devices that match, such as 'site=lab'"
    rotate.add_argument("--where", metavar="CONDITION", help=help_text)
    rotate.set_defaults(call=_rotate)


def _rotate(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    chosen: Condition | Collection[str] = arguments.device
    if arguments.where is not None:
        if arguments.device:
            raise ConfigError(
                "device rotate", " ".join(arguments.device), "device ids or --where, not both"
            )
        chosen = parse(arguments.where, "--where")
        store.require_known(chosen, "--where")
    if chosen:
        _require_accounts(cloud)
        names = store.ask_to_renew(chosen, time.time())
        print(
            f"asked for new secrets: {quantity(len(names), 'device')}. A device's old secret stays"
        )
        print("valid until it has used its new one; `sedge-cloud device rotate` lists devices that")
        print("still have to change")
        unable = [row for row in store.devices_named(names).values() if not _renews(row)]
        for row in unable:
            print(_unable(row))
        return 0
    _list(store)
    return 0


def _require_accounts(cloud: CloudConfig) -> None:
    """Raise ``ConfigError`` if this machine cannot set devices' passwords at the broker."""
    broker = cloud.broker
    expected = "this key in cloud.toml, to give the broker new passwords; or use `device reissue`"
    for key, value in (
        ("broker.device_password_file", broker.device_password_file),
        ("broker.reload", broker.reload),
    ):
        if value is None:
            raise ConfigError(key, None, expected)


def _list(store: Store) -> None:
    rows = store.renewals()
    devices, online = store.devices_named([row.device for row in rows]), set(store.online())
    for row in rows:
        device = devices[row.device]
        if row.account:
            what = "has its new secret but has yet to connect with it"
        elif row.point:
            what = "has its new secret; the broker has yet to get its password"
        elif not _renews(device):
            what = _unable(device).partition(": ")[2]
        elif row.device in online:
            what = "is online and is being asked"
        else:
            what = "is offline; it gets a new secret when it comes back"
        since = time.strftime("%F %R", time.gmtime(row.asked))
        print(f"{row.device}: {what} (since {since} UTC)")
    if not rows:
        print("no device still has to change its secret")


def _renews(row: DeviceRow) -> bool:
    hello = row.read_hello()
    return hello is None or RENEWS in hello.codecs


def _unable(row: DeviceRow) -> str:
    """Return a line saying that a device's agent cannot change its secret."""
    hello = row.read_hello()
    version = "" if hello is None else f" {hello.version}"
    return (
        f"{row.device}: its agent{version} cannot change its secret: upgrade it, or use "
        f"`sedge-cloud device token add --device {row.device}`"
    )
