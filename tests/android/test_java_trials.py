"""Trials of programs in processes of their own, from Java: in another JVM, and by the phone's service.

The service runs on stand-ins for Android's classes, which start a JVM for it. The programs that crash are
those of the Python agent's tests: a changed byte that passes every check.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.android.classes import java
from tests.android.java import VECTORS
from tests.android.java_fleet import MEANS
from tests.edge.backends.softmax import FILES, PTE, C, F, N, bundle

from sedge_edge.backends.trial import Verdicts
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, pack
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import Codec, Work

pytestmark = pytest.mark.fleet

EXECUTORCH_ON_A_JVM = "org.sedge.executorch.JvmExecutorch"
UNENDING = "org.sedge.edge.backends.Unending"
CHILD, PHONE = "org.sedge.jvm.ChildProcess", "org.sedge.android.PhoneSandbox"
A_PROCESS = "a process for TrialService"
MAGIC_AND_HASH = 40


class Phone:
    """A state folder with one order; each call is a start of the process that trains."""

    def __init__(self, folder: Path, programs: dict[str, bytes], backend: str = EXECUTORCH) -> None:
        self.folder = folder
        theta = np.zeros(N, np.float32)
        blobs = [pack(bundle(programs, backend))]
        blobs.append(
            encode(
                SparseVector(N, np.arange(N, dtype=np.uint32), theta),
                ValueCoding.FP32,
                Compression.ZLIB,
            )
        )
        for blob in blobs:
            BlobFolder(folder, min_free_bytes=0).write(blob)
        order = Order(
            run="run",
            round=1,
            task="train",
            bundle=describe(blobs[0]),
            model=describe(blobs[1]),
            model_hash=hashlib.sha256(theta.tobytes()).digest(),
            codec=Codec(ValueCoding.BF16),
            work=Work(training=Training(learning_rate=0.1)),
        )
        (folder / "order").write_bytes(msgspec.msgpack.encode(order))
        rng = np.random.default_rng(0)
        for name in ("train.npz", "test.npz"):
            x = rng.standard_normal((8, F)).astype(np.float32)
            np.savez(folder / name, x=x, y=rng.integers(0, C, 8))

    def start(
        self, class_path: str, library: Path | None, backend: str, options: Sequence[str]
    ) -> tuple[int, str]:
        """How many processes of the service were started, and what became of the order."""
        data = self.folder / "train.npz", self.folder / "test.npz"
        words: list[str | Path] = [self.folder, *data, backend, self.folder / "order"]
        main = "org.sedge.edge.backends.DoOrders"
        *processes, said, _ = java(class_path, main, *words, library=library, options=options)
        return processes.count(A_PROCESS), said

    def verdicts(self) -> list[str]:
        """Those in the file, as the Python agent reads its own."""
        path = self.folder / "trials"
        data = path.read_bytes()[MAGIC_AND_HASH:] if path.exists() else b""
        return list(msgspec.msgpack.decode(data, type=Verdicts).found.values()) if data else []


def refused(why: str) -> str:
    return f"backend: found 'executorch', expected a working backend; executorch: {why}"


@pytest.mark.parametrize("sandbox", [CHILD, PHONE])
def test_programs_that_pass_are_tried_once(
    class_path: str, library: Path, sandbox: str, tmp_path: Path
) -> None:
    phone, processes = Phone(tmp_path, PTE), 0
    for _ in range(2):
        started, said = phone.start(
            class_path, library, EXECUTORCH_ON_A_JVM, [f"-Dsedge.sandbox={sandbox}"]
        )
        processes += started
        assert len(said) == 64  # an update
        assert phone.verdicts() == [""]
    assert processes == (1 if sandbox == PHONE else 0)


@pytest.mark.parametrize("sandbox", [CHILD, PHONE])
@pytest.mark.parametrize(
    ("name", "at", "value"),
    [("gradient", 5240, 47), ("evaluate", 8411, 191), ("predict", 477, 255)],
)
def test_a_program_that_crashes_costs_the_round_and_not_the_process(
    class_path: str, library: Path, sandbox: str, name: str, at: int, value: int, tmp_path: Path
) -> None:
    changed = bytearray(PTE["gradient"])
    changed[at] = value
    phone, processes = Phone(tmp_path, dict.fromkeys(PTE, bytes(changed))), 0
    fault = f"a trial run of '{name}' ended with signal 6"  # a JVM ends itself so on any
    for _ in range(2):
        started, said = phone.start(
            class_path, library, EXECUTORCH_ON_A_JVM, [f"-Dsedge.sandbox={sandbox}"]
        )
        processes += started
        assert said == refused(fault)
        assert phone.verdicts() == [fault]
    assert processes == (1 if sandbox == PHONE else 0)


SERVICE = "org.sedge.android.TrialService"


@pytest.mark.parametrize(
    ("services", "fault"),
    [
        (
            "missing",
            f"Android refused its service, expected {SERVICE} in the app's manifest, and at most one "
            "crash of it within minutes",
        ),
        ("denied", "Not allowed to bind to service"),
        ("none", "Android did not start its process within 2 s"),
        (
            "inside",
            f"the manifest gives {SERVICE} no process of its own, expected "
            'android:process=":sedgetrial"',
        ),
    ],
)
def test_a_service_that_cannot_be_had_is_one_line(
    class_path: str, services: str, fault: str, tmp_path: Path
) -> None:
    """Nothing has been tried: no program runs, and the next start asks again."""
    phone = Phone(tmp_path, PTE)
    words = [f"-Dsedge.sandbox={PHONE}", f"-Dsedge.services={services}"]
    assert phone.start(class_path, None, UNENDING, words) == (
        0,
        refused(f"a trial run could not begin: {fault}"),
    )
    assert phone.verdicts() == []


@pytest.mark.parametrize(
    ("sandbox", "options", "how"),
    [
        (CHILD, ["-Dsedge.status=137"], "ended with signal 9"),
        (CHILD, ["-Dsedge.status=3"], "ended with exit status 3"),
        (CHILD, ["-Dsedge.trial_ms=3000"], "did not end within 3 s"),
        (PHONE, ["-Dsedge.status=137"], "ended with its process killed for lack of memory"),
        (PHONE, ["-Dsedge.status=139", "-Dsedge.api=29"], "ended with the death of its process"),
        (PHONE, ["-Dsedge.trial_ms=3000"], "did not end within 3 s"),
    ],
)
def test_what_may_end_otherwise_is_tried_again(
    class_path: str, sandbox: str, options: list[str], how: str, tmp_path: Path
) -> None:
    """A lack of memory, load, a death without a reason; and no trial outlives the one that asked for it."""
    phone = Phone(tmp_path, PTE)
    words = [f"-Dsedge.sandbox={sandbox}", f"-Dsedge.of={tmp_path}", *options]
    fault = refused(f"a trial run of 'evaluate' {how}")
    assert phone.start(class_path, None, UNENDING, words)[1] == fault
    assert phone.verdicts() == []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended by now
            assert f"-Dsedge.of={tmp_path}".encode() not in path.read_bytes()


def test_a_program_is_checked_before_anybody_predicts_with_it(
    class_path: str, tmp_path: Path
) -> None:
    cases = json.loads((VECTORS / "spec.json").read_text())["programs"]
    graph = next(bytes.fromhex(case["program"]) for case in cases if case["rule"] == "a function")
    phone = Phone(tmp_path, {**FILES, "predict": graph}, ONNXRUNTIME)
    _, said = phone.start(class_path, None, MEANS, [])
    where = "bundle 'softmax': program 'predict' cannot be loaded: program: "
    assert said == f"{where}field 25 is not allowed there, or one too many"
