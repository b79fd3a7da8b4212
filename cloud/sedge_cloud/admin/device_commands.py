"""The commands ``device add``, ``reissue``, ``revoke``, ``list``, ``tag``, ``pause`` and ``resume``."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import msgspec

from sedge_cloud.admin import enrolment
from sedge_cloud.admin.commands import at_least_one, from_zero, open_reader, open_state
from sedge_cloud.admin.device_names import device_names
from sedge_cloud.admin.join_commands import add_join_commands
from sedge_cloud.admin.revocation import SIGHUP, revoke_device
from sedge_cloud.admin.rotation import add_rotate_command
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import DeviceState, when
from sedge_cloud.facts.selection import DeviceSelection
from sedge_cloud.figures.numbers import quantity
from sedge_cloud.outlets import terminal as lines
from sedge_cloud.outlets.tables import table, terminal_width
from sedge_cloud.store.database import Store
from sedge_cloud.store.selector import Condition, parse
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.command_line import Commands, Parser
from sedge_protocol.host.console import json_text


def add_device_commands(commands: Commands) -> None:
    """Add the commands for devices."""
    parser: Parser = commands.add_parser("device", help="enrol and revoke devices")
    commands = parser.add_commands()
    add = commands.add_parser(
        "add", help="enrol devices and write their edge.toml and secret",
        examples=[
            "sedge-cloud device add pi-1 --join",
            "sedge-cloud device add pi --count 20 --out devices",
            "sedge-cloud device add --names list.csv",
        ],
    )  # fmt: skip
    add.add_argument("device", nargs="?")
    which = add.add_mutually_exclusive_group()
    help_text = "enrol N devices: DEVICE-1, DEVICE-2, …; --out then holds their folders"
    which.add_argument("--count", type=at_least_one, metavar="N", help=help_text)
    help_text = (
        "enrol the devices of this CSV file instead: columns device, secret (optional), tags"
    )
    which.add_argument("--names", type=Path, metavar="FILE", help=help_text)
    _add_issue_options(add)
    add.set_defaults(call=_add)
    help_text = "give a known device, revoked or not, a new secret"
    reissue = commands.add_parser(
        "reissue", help=help_text, examples=["sedge-cloud device reissue pi-1 --out pi-1-new"]
    )
    reissue.add_argument("device")
    _add_issue_options(reissue)
    reissue.set_defaults(call=_reissue)
    revoke = commands.add_parser(
        "revoke", help="expel a device from the fleet", examples=["sedge-cloud device revoke pi-1"]
    )
    revoke.add_argument("device")
    revoke.set_defaults(call=_revoke)
    _add_tag_command(commands)
    _add_choice(commands, "pause", "pause devices: they stay enrolled, but no round includes them")
    _add_choice(commands, "resume", "let paused devices take part again")
    add_join_commands(commands)
    add_rotate_command(commands)
    devices = commands.add_parser(
        "list", help="list every device: whether it is online, since when, and what is wrong",
        examples=[
            "sedge-cloud device list --online",
            "sedge-cloud device list --where 'site=lab and memory_mb>=512' --json",
        ],
    )  # fmt: skip
    devices.add_argument("--json", action="store_true", help="one JSON object per device")
    which = devices.add_mutually_exclusive_group()
    which.add_argument("--online", action="store_true", help="only devices that are online")
    which.add_argument("--state", choices=get_args(DeviceState), help="only devices in this state")
    devices.add_argument(
        "--search", metavar="TEXT", default="", help="only devices whose id contains this text"
    )
    help_text = "only devices that match, such as 'site=lab and memory_mb>=512'"
    devices.add_argument("--where", metavar="CONDITION", help=help_text)
    devices.add_argument("--limit", type=at_least_one, metavar="N", help="list at most N devices")
    devices.add_argument(
        "--offset", type=from_zero, metavar="N", default=0, help="skip the first N devices"
    )
    devices.set_defaults(call=_list)


def _add_tag_command(commands: Commands) -> None:
    tag = commands.add_parser(
        "tag", help="tag devices, so that runs and lists can select them",
        examples=[
            "sedge-cloud device tag pi-1 pi-2 site=lab",
            "sedge-cloud device tag --where 'site=lab' floor=2",
        ],
    )  # fmt: skip
    help_text = "ids of devices, then tags; KEY= removes a tag"
    tag.add_argument("what", nargs="+", metavar="DEVICE … KEY=VALUE …", help=help_text)
    help_text = "instead of ids: all devices that match, such as 'site=lab and memory_mb>=512'"
    tag.add_argument("--where", metavar="CONDITION", help=help_text)
    tag.set_defaults(call=_tag)


def _add_choice(commands: Commands, verb: str, help_text: str) -> None:
    examples = [f"sedge-cloud device {verb} pi-1", f"sedge-cloud device {verb} --where site=lab"]
    parser = commands.add_parser(verb, help=help_text, examples=examples)
    parser.add_argument("device", nargs="*")
    help_text = "instead of ids: all devices that match, such as 'site=lab'"
    parser.add_argument("--where", metavar="CONDITION", help=help_text)
    parser.set_defaults(call=_set_aside, verb=verb)


def _add_issue_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, help="new folder for the files (default: the device's id)"
    )
    parser.add_argument(
        "--service", action="store_true", help="write them for /etc/sedge and sedge-edge.service"
    )
    help_text = "also print the files as one line, for `sedge-edge join` or a phone's app"
    parser.add_argument("--join", action="store_true", help=help_text)


def _add(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    which = arguments.device, arguments.count, arguments.names
    names = device_names(*which, store.devices_named)
    folders = names.folders(arguments.out)
    given = names.secrets, names.tags
    enrolment.add_devices(store, cloud, folders, arguments.service, *given)
    if names.secrets:
        print(f"enrolled with existing secrets: {quantity(len(names.secrets), 'device')}")
    _tell_issued(arguments, cloud, folders, bool(names.secrets))
    return 0


def _reissue(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    name = arguments.device
    folder = enrolment.reissue_device(store, cloud, name, arguments.out, arguments.service)
    _tell_issued(arguments, cloud, {name: folder})
    return 0


def _tell_issued(
    arguments: argparse.Namespace,
    cloud: CloudConfig,
    issued: Mapping[str, Path],
    others: bool = False,
) -> None:
    for folder in issued.values():
        if arguments.service:
            print(
                f"Copy the contents of {folder}/ to /etc/sedge/ on the device, and start sedge-edge.service"
            )
        else:
            print(f"Copy {folder}/ to the device. There, in that folder, run: sedge-edge run")
    if issued or others:
        enrolment.reload_broker(cloud)
    if (
        (issued or others)
        and cloud.broker.device_password_file is not None
        and cloud.broker.reload is None
    ):
        print(SIGHUP)
    for name, folder in issued.items():
        if cloud.broker.cert_file is not None and cloud.broker.authority_key_file is None:
            print(f"If the broker requires client certificates, add one with CN={name} and "
                  "its key, and name both in edge.toml.")  # fmt: skip
        if arguments.join:
            print("Or give this line, which holds the secret, to the app or to `sedge-edge join`:")
            print(enrolment.join_text(folder))


def tags_text(tags: Mapping[str, str]) -> str:
    """Format tags as ``device tag`` expects them."""
    return " ".join(f"{key}={value}" for key, value in tags.items())


def _revoke(arguments: argparse.Namespace) -> int:
    cloud, store = open_state(arguments)
    revocation = revoke_device(store, cloud, arguments.device)
    for line in (*revocation.done, *revocation.left):
        print(line)
    if revocation.failure:
        raise StorageError(revocation.failure)
    return 0


def _tag(arguments: argparse.Namespace) -> int:
    devices = [word for word in arguments.what if "=" not in word]
    tags = dict(word.split("=", 1) for word in arguments.what if "=" in word)
    if not tags:
        raise ConfigError("device tag", " ".join(devices) or None, "at least one KEY=VALUE")
    if bool(devices) == (arguments.where is not None):
        raise ConfigError(
            "device tag", " ".join(devices) or None, "device ids or --where, not both"
        )
    _, store = open_state(arguments)
    count = store.tag(devices or _condition(store, arguments.where), tags)
    print(f"{quantity(count, 'device')} tagged: {tags_text(tags)}")
    return 0


def _set_aside(arguments: argparse.Namespace) -> int:
    devices, pauses = list[str](arguments.device), arguments.verb == "pause"
    if bool(devices) == (arguments.where is not None):
        key = f"device {arguments.verb}"
        raise ConfigError(key, " ".join(devices) or None, "device ids or --where, not both")
    _, store = open_state(arguments)
    chosen = devices or _condition(store, arguments.where)
    count = store.pause(chosen, time.time()) if pauses else store.resume(chosen)
    what = f"paused: no round includes {'it' if count == 1 else 'them'}" if pauses else "resumed"
    print(f"{quantity(count, 'device')} {what}")
    return 0


def _condition(store: Store, text: str) -> Condition:
    """Parse the --where condition. Raises ``ConfigError`` for bad syntax, or a tag no device has."""
    condition = parse(text, "--where")
    store.require_known(condition, "--where")
    return condition


def _list(arguments: argparse.Namespace) -> int:
    reader = open_reader(arguments)
    facts = reader.read()
    state: DeviceState | None = "online" if arguments.online else arguments.state
    where: str = arguments.where or ""
    wanted = DeviceSelection(state, arguments.search, arguments.offset, arguments.limit, where)
    lots, found = reader.lots(facts, wanted)
    listed = 0
    for lot in lots:
        listed += len(lot)
        tags = reader.store.tags_of([device.device for device in lot])
        rows: list[tuple[str, ...]] = [lines.DEVICES]
        for device in lot:
            own = tags.get(device.device, {})
            if arguments.json:
                print(json_text({**msgspec.to_builtins(device), "tags": own}))
            else:
                *cells, what = lines.device_cells(device, facts.at)
                rows.append((*cells, f"{what}  {tags_text(own)}".strip()))
        if not arguments.json:
            print("\n".join(table(rows, lines.NUMBERS, terminal_width())))
    if arguments.json:
        if wanted == DeviceSelection(search=arguments.search):
            for join in reader.store.joins(["pending"]):
                if arguments.search in join.device:
                    said = {"device": join.device, "state": "pending", "since": when(join.asked)}
                    print(json_text({**said, "token": join.token}))
        return 0
    if listed < (known := sum(facts.states.values())):
        print(f"{listed} of {found} matching devices, {known} in all")
    if any(one.behind for one in facts.versions):
        print(lines.versions_line(facts.versions))
    for problem in facts.problems:
        print(lines.problem_line(problem, facts.at))
    return 0
