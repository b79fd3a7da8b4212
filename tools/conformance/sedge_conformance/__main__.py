"""The ``sedge-conformance`` command."""

import argparse
import sys
from pathlib import Path

from sedge_cloud.config import load_cloud
from sedge_conformance.shell import conform
from sedge_conformance.stage import Finding
from sedge_protocol.host.command_line import Parser, command, exit_status, parsed


def main(argv: list[str] | None = None) -> int:
    """Play every act.

    Returns 0 if the client keeps every rule, 1 if it breaks one, 2 or more for errors.
    """

    def call() -> int:
        arguments = parsed(parser(), argv, needs_posix=True)
        return _play(arguments)

    return exit_status("sedge-conformance", call)


def parser() -> Parser:
    """Return the command's argument parser."""
    found = command(
        "sedge-conformance", "Report the rules of WIRE.md that a client breaks.", "cloud.toml",
        ["sedge-conformance my-client --bundle model -c fleet/cloud.toml"],
    )  # fmt: skip
    found.add_argument(
        "device",
        help="a device enrolled only for this test: its client may delete data of other runs",
    )
    help_text = "folder made by sedge-export"
    found.add_argument("--bundle", type=Path, required=True, help=help_text)
    help_text = (
        "port that forwards the client to the broker, to test a cut connection; open to the network"
    )
    found.add_argument("--gate", type=int, metavar="PORT", help=help_text)
    return found


def _play(arguments: argparse.Namespace) -> int:
    kept: list[bool] = []

    def tell(finding: Finding) -> None:
        kept.append(finding.good)
        verdict = "ok    " if finding.good else "BROKEN"
        print(f"{verdict}  {finding.rule:<5} {finding.act:<12} {finding.text}", flush=True)

    cloud = load_cloud(arguments.config)
    print(
        f"start the client of {arguments.device}; the test takes about a minute plus its training",
        flush=True,
    )
    conforms = conform(cloud, arguments.device, arguments.bundle, arguments.gate, tell)
    print(f"{sum(kept)} of {len(kept)} kept")
    if arguments.gate is None:
        print("not tested: a cut connection, which needs --gate")
    return 0 if conforms else 1


if __name__ == "__main__":
    sys.exit(main())
