"""Makes the state folder of a device as the code at hand leaves it, for later versions to go on from.

    python -m tests.edge.before.make_folder OUT.tar.xz

protocol-1.tar.xz is from commit 2ad673c1, which spoke protocol version 1. The update of round 2 of the run
``run`` waits for its receipt. The order of round 1 of the run ``levels`` has arrived, and asks the device
to pick a part of its patch, by levels that version 2 does not have.
"""

import sys
import tarfile
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.edge.harness import Harness, N, drift

from sedge_edge.agent import AgentEffect
from sedge_protocol.codec import ValueCoding, encode, top_k
from sedge_protocol.wire.messages import Offer
from sedge_protocol.wire.work import PatchChoice, Work


class Deaf(Harness):
    """A coordinator that answers no more offers once ``deaf`` is set."""

    deaf = False

    def take(self, offer: Offer, answered: int) -> list[AgentEffect]:
        return [] if self.deaf else super().take(offer, answered)


def orders(harness: Harness, choice: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The three orders; ``choice`` are the fields of the last one's."""
    patch = encode(top_k(drift(5), N // 10), ValueCoding.FP32)
    picked = Work(choice=PatchChoice(0.25, 11, **choice))
    last = msgspec.structs.replace(harness.patched(1, patch), run="levels", work=picked)
    return harness.order(1), harness.order(2), last


def make(folder: Path) -> None:
    """Play the device's part of two rounds, and the arrival of a third order."""
    encode_levels = import_module(
        "sedge_protocol.codec.patch_levels"
    ).encode_levels  # of that commit
    harness = Deaf(folder)
    levels = encode_levels(np.arange(N // 10, dtype=np.uint8) % 4)
    first, second, last = orders(harness, {"levels": levels})
    harness.connect()
    harness.give(first)
    harness.deaf = True
    harness.give(second)
    harness.tell(last)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, tarfile.open(sys.argv[1], "w:xz") as archive:
        make(Path(name))
        archive.add(name, "state")


if __name__ == "__main__":
    main()
