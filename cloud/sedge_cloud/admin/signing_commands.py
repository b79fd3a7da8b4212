"""The commands that need a signing key but no coordinator: ``key`` and ``run sign``."""

import argparse
from pathlib import Path

from sedge_cloud.admin.policies import Extent, described, make_policy, write_policy
from sedge_cloud.run_file import load_run
from sedge_protocol.host.command_line import Commands
from sedge_protocol.host.signing import (
    new_key,
    public_hex,
    read_chain,
    read_key,
    replace_key,
    sign,
)
from sedge_protocol.wire.topics import check_id


def add_key_commands(commands: Commands) -> None:
    """Add the commands for signing keys."""
    help_text = "keys that sign what runs may ask of devices"
    verbs = commands.add_parser("key", help=help_text, config="").add_commands()
    new = verbs.add_parser(
        "new", help="write a new private key, and print its public key",
        examples=["sedge-cloud key new fleet.pem"],
    )  # fmt: skip
    new.add_argument("file", type=Path)
    new.set_defaults(call=_new)
    show = verbs.add_parser(
        "show", help="print a private key's public key, for [trust]",
        examples=["sedge-cloud key show fleet.pem"],
    )  # fmt: skip
    show.add_argument("file", type=Path, help="a PEM file from `key new` or openssl")
    show.set_defaults(call=_show)
    replace = verbs.add_parser(
        "replace", help="write NEW.chain, with which NEW replaces OLD on all devices",
        examples=["sedge-cloud key replace fleet.pem fleet2.pem"],
    )  # fmt: skip
    replace.add_argument("old", type=Path, help="the private key that devices trust")
    replace.add_argument("new", type=Path, help="the private key to trust instead")
    replace.set_defaults(call=_replace)


def add_run_description(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a run: its name, bundles and run file."""
    parser.add_argument("name")
    help_text = "folder from sedge-export; repeat the option for each narrower model"
    parser.add_argument("--bundle", type=Path, required=True, action="append", help=help_text)
    help_text = "run.toml: strategy, rounds, …"
    parser.add_argument("--run-file", type=Path, required=True, help=help_text)


def add_sign_command(commands: Commands) -> None:
    """Add ``run sign``."""
    signing = commands.add_parser(
        "sign", help="sign what a run may ask of devices, on any machine that has the key", config="",
        examples=["sedge-cloud run sign first --bundle model --run-file run.toml --key fleet.pem"],
    )  # fmt: skip
    add_run_description(signing)
    signing.add_argument("--key", type=Path, required=True, help="private key from `key new`")
    help_text = "the file for `run start` and `run resume` (default: NAME.policy)"
    signing.add_argument("--out", type=Path, help=help_text)
    help_text = "higher than the version of the run's last policy (default: 1)"
    signing.add_argument("--version", type=int, default=1, metavar="N", help=help_text)
    help_text = "how many days devices accept orders with it (default: forever)"
    signing.add_argument("--days", type=float, default=0.0, help=help_text)
    help_text = "the highest round (default: the run file's rounds plus one for newcomers)"
    signing.add_argument("--last-round", type=int, default=0, metavar="N", help=help_text)
    help_text = "an extension that only later rounds of your own strategy use"
    signing.add_argument("--allow", action="append", default=[], metavar="WORD", help=help_text)
    help_text = "a new version of the bundle, which `rollout start` may give its devices"
    signing.add_argument("--also", type=Path, action="append", default=[], help=help_text)
    signing.set_defaults(call=_sign)


def _new(arguments: argparse.Namespace) -> int:
    print(new_key(arguments.file))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    print(public_hex(read_key(arguments.file)))
    return 0


def _replace(arguments: argparse.Namespace) -> int:
    path = replace_key(arguments.old, arguments.new)
    print(f"{path}: keep it next to {arguments.new}; `run sign --key {arguments.new}` reads it")
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    name: str = arguments.name
    check_id(name, "run")
    key, config = read_key(arguments.key), load_run(arguments.run_file)
    extent = Extent(
        arguments.version, arguments.days, arguments.last_round, arguments.allow, arguments.also,
        read_chain(arguments.key),
    )  # fmt: skip
    policy = make_policy(name, arguments.bundle, config, extent)
    out: Path = arguments.out or Path(f"{name}.policy")
    write_policy(out, sign(policy, key))
    print(f"{described(policy)}\nsigned by {public_hex(key)}: {out}")
    return 0
