"""What only a core in Java has: a listener, and a JVM that one test must not leave broken for the next."""

from pathlib import Path
from typing import Any

import pytest
from tests.edge.harness import DriftTrainer
from tests.edge.java_core import JavaDisk, JavaHarness, Jvm

from sedge_edge.training.trainer import Trained
from sedge_protocol.wire.messages import Committed, Reject


def test_a_listener_hears_of_every_receipt_once(jvm: Jvm, tmp_path: Path) -> None:
    device = JavaHarness(jvm, tmp_path)
    device.connect()
    jvm.heard.clear()
    for number in (1, 2):
        device.give(device.order(number))
        digest = next(reversed(device.offers.values())).manifest.sha256
        device.tell(Committed("run", number, digest))  # once more
        device.tell(Reject("run", number, digest, "CodecError"))  # too late
    found = [words.split() for words in jvm.heard]
    assert [words[:5] for words in found] == [
        ["finished", "run", number, "0.5", "0.5"] for number in ("1", "2")
    ]
    assert all(int(size) > 0 for words in found for size in words[5:])


class Broken(DriftTrainer):
    def train(self, *args: Any, **kwargs: Any) -> Trained:
        raise ZeroDivisionError("a mistake")


@pytest.mark.parametrize("way", ["a full disk", "a disk that refuses"])
def test_a_test_that_fails_does_not_break_the_next(jvm: Jvm, tmp_path: Path, way: str) -> None:
    device = JavaHarness(jvm, tmp_path / "fails")
    device.connect()
    device.trainer = Broken()
    disk = JavaDisk(jvm)
    with (
        pytest.raises(ZeroDivisionError),
        disk.full(10**6, 30) if way == "a full disk" else device.refusing("collect"),
    ):
        device.give(device.order())
    following = JavaHarness(jvm, tmp_path / "next")
    following.connect()
    following.give(following.order())
    assert ("run", 1) in following.updates
