"""The Android layer without Android: join texts, the log of rounds, .npz files."""

import json
import re
import time
from pathlib import Path
from ssl import DER_cert_to_PEM_cert

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from tests.android.classes import java
from tests.android.java import VECTORS

from android.build import HERE
from sedge_cloud.broker.certificates import Authority
from sedge_protocol.host.enrolment import Enrolment

# Bytes in version 40 of ISO/IEC 18004, at the lowest error correction.
LARGEST_QR_CODE = 2953


def test_a_join_text_is_read_as_it_was_printed(class_path: str, tmp_path: Path) -> None:
    """E7 of protocol/spec/enrolment.md, from the coordinator's own function to the app's field."""
    secret = bytes(range(32)).hex()
    texts = [Enrolment("phone-1", "home", "mqtt://10.0.0.1", secret).join_text()]
    maker = Authority.made("home")
    pem, _ = maker.texts()
    enrolment = Enrolment("phone-1", "home", "mqtts://broker.example:8884", secret, pem)
    texts.append(f"  {enrolment.join_text()}\n")
    of_device = DER_cert_to_PEM_cert(maker.certify("phone-1", bytes(range(32)), time.time()).der)
    of_other = DER_cert_to_PEM_cert(maker.certify("phone-2", bytes(32), time.time()).der)
    good, certified = (replace(enrolment, certificate=own) for own in (of_device, of_other))
    texts.append(good.join_text())
    refused = [
        certified.join_text(),
        "",
        "https://broker.example",
        texts[0][:-30],
        texts[0].replace("sedge:", "sedge:!"),
    ]
    said = java(class_path, "org.sedge.android.ReadJoinText", *texts, *refused)
    assert all(len(text.strip()) <= LARGEST_QR_CODE for text in texts)
    assert said[:3] == [
        f"phone-1 home mqtt://10.0.0.1 {secret} no authority",
        f"phone-1 home mqtts://broker.example:8884 {secret} {pem.replace(chr(10), '|')}",
        f"{said[1]} it is not valid yet, as this device's clock says 1970-01-01: set the clock",
    ]
    assert len(said) == 8 and "certificate: found one for another key" in said[3]
    for line in said[3:]:
        assert line.startswith("join text: ")
        assert secret[:8] not in line


def test_the_names_of_a_graph_become_positions(class_path: str, tmp_path: Path) -> None:
    """The calls of ONNX Runtime's AAR, on stand-ins for its classes; nothing that it makes is left open."""
    cases = json.loads((VECTORS / "spec.json").read_text())["programs"]
    good = tmp_path / "good.onnx"
    good.write_bytes(bytes.fromhex(cases[0]["program"]))
    said = java(class_path, "org.sedge.onnxruntime.RunGraph", good, tmp_path / "none.onnx")
    assert said[:3] == ["[2] [6.0, 7.0]", "[] [12.0]", "onnxruntime: theta has another shape"]
    assert said[3].startswith("onnxruntime: none.onnx: ")
    assert said[4:] == ["0"]


def test_the_log_keeps_the_last_hundred_rounds(class_path: str, tmp_path: Path) -> None:
    now, *rounds = java(class_path, "org.sedge.android.KeepLog", tmp_path / "rounds", "103")
    assert now == "All is well."
    assert len(rounds) == 100
    assert rounds[0] == "103000 first 103 mean absolute error 0.250 0.5 2000 3000 one line\ttab"
    assert rounds[1] == "102000 first 102 accuracy 25.0 % NaN 2000 3000 one line\ttab"
    assert rounds[-1] == "4000 first 4 mean absolute error 0.250 NaN 2000 3000 one line\ttab"


def test_a_screen_hears_of_every_change_of_the_log(class_path: str, tmp_path: Path) -> None:
    said = java(class_path, "org.sedge.android.WatchLog", tmp_path / "rounds")
    assert said == ["Training.", "Done.", "null"]


def test_classes_for_apps_hold_no_state_that_others_can_change() -> None:
    """No field of theirs can be set from outside, and none is an array."""
    for package in ("core/src/main/java/org/sedge/edge", "library/src/main/java/org/sedge/android"):
        files = sorted((HERE / package).glob("*.java"))
        assert len(files) > 10
        for path in files:
            for line in re.findall(
                r"^ +public (?!class|interface|enum)[^(\n;=]*[;=]", path.read_text(), re.M
            ):
                assert " final " in line and "[]" not in line.partition("=")[0], (
                    f"{path.name}: {line}"
                )


def test_the_kotlin_example_calls_what_there_is() -> None:
    """No compiler of Kotlin is at hand: its imports are classes, its calls their methods or Kotlin's."""
    example = (HERE.parents[1] / "examples/android/WalkModel.kt").read_text()
    sources = [HERE / f"{module}/src/main/java" for module in ("core", "library")]
    files = [
        next(
            one
            for one in (source / f"{name.replace('.', '/')}.java" for source in sources)
            if one.exists()
        )
        for name in re.findall(r"^import (org\.sedge\..+)$", example, re.MULTILINE)
    ]
    names = [path.stem for path in files] + ["Classified", "PersonalModel"]
    text = "".join(
        path.read_text()
        for source in sources
        for name in names
        for path in source.rglob(f"{name}.java")
    )
    has = set(re.findall(r"^ +public [^=;]*?(\w+)\(", text, re.MULTILINE))
    called = set(re.findall(r"\.([a-z]\w*)(?:\(| \{)", example)) - {
        "use",
        "map",
        "getOrElse",
        "toInt",
        "firstOrNull",
    }
    assert len(files) == 4 and called == {
        "open", "classify", "classes", "longs", "labels", "log", "listen", "now", "rounds", "leave",
    }  # fmt: skip
    assert called <= has


def test_android_is_asked_for_what_the_conditions_say(class_path: str) -> None:
    said = java(class_path, "org.sedge.android.ScheduleJobs")
    other = "RunJobs, any network, every 900 s, over restarts"
    assert said == [
        "[RunJobs, charging, unmetered, idle, every 3600 s, over restarts]",
        f"[{other}]",
        f"[{other}, RunJobs, any network, within 0 ms]",
        "[]",
        "Android refused the job; is the service in the manifest?",
    ]


def test_the_notification_is_of_the_round_that_trains(class_path: str, tmp_path: Path) -> None:
    assert java(class_path, "org.sedge.android.TellProgress", tmp_path / "rounds") == [
        "foreground: Round 1 of first",
        "notification: Round 1 of second",  # where Android refuses the foreground
        "Round 1 of first is done.",
        "closed",
        "Nothing to do; waiting for the next round.",
        "the coordinator refuses: revoked",
        "the coordinator refuses: revoked",
    ]


def test_a_damaged_log_begins_anew(class_path: str, tmp_path: Path) -> None:
    path = tmp_path / "rounds"
    for damaged in (b"", b"\xff\xfe", b"now\nno round\n", b"now\n1\tr\tx\t0\t0\t0\t0\t\n"):
        path.write_bytes(damaged)
        assert len(java(class_path, "org.sedge.android.KeepLog", path, "2")) == 3


X = np.arange(6).reshape(2, 1, 3)
PIXELS = (X[:, None] * 51).astype(np.uint8)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_examples_are_read_as_numpy_wrote_them(
    class_path: str, save: object, tmp_path: Path
) -> None:
    """The same types and shapes as in the Python agent."""
    kept, scaled = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    arrays: list[tuple[NDArray[np.generic], NDArray[np.generic] | None, str]] = [
        (X.astype(np.float32), np.array([1, 0]), f"(1, 3) {kept}; () [1, 0]"),
        (X.astype(np.float64), np.array([1, 0], np.int32), f"(1, 3) {kept}; () [1, 0]"),
        (PIXELS, np.array([1, 0], np.uint8), f"(1, 1, 3) {scaled}; () [1, 0]"),
        (X.astype(np.uint8), np.array([1, 0]), f"(1, 3) {kept}; () [1, 0]"),
        (X > 2, np.array([1, 0]), "(1, 3) [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]; () [1, 0]"),
        (X, np.array([0.5, 2]), "(1, 3) [0, 1, 2, 3, 4, 5]; () [0.5, 2.0]"),
        (X.astype(np.float32), np.zeros((2, 2)), f"(1, 3) {kept}; (2,) [0.0, 0.0, 0.0, 0.0]"),
        (X.astype(np.float32), None, f"(1, 3) {kept}; none"),
    ]
    paths: list[Path] = []
    for index, (x, y, _) in enumerate(arrays):
        paths.append(tmp_path / f"{index}.npz")
        found = {} if y is None else {"y": y}
        save(paths[-1], **found, other=np.zeros(3), x=x)  # type: ignore[operator]
    said = java(class_path, "org.sedge.android.ReadNpz", *paths)
    assert said == [expected for _, _, expected in arrays]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(2, int)}, "the arrays are y, expected the names x and y"),
        ({"X": X, "Y": X}, "the arrays are X, Y, expected the names x and y"),
        ({"x": X, "label": X}, "the arrays are x, label, expected the names x and y"),
        ({"x": X, "y": np.zeros(2, bool)}, "y is bool, expected numbers: integers are labels"),
        ({"x": X, "y": np.zeros(3, int)}, "x has 2 rows and y 3, expected the same number"),
        ({"x": np.asfortranarray(X[:, 0]), "y": np.zeros(2, int)}, "in C order, no float16"),
        ({"x": X.astype(np.float16), "y": np.zeros(2, int)}, "in C order, no float16"),
        ({"x": np.float32(1), "y": np.zeros(1, int)}, "x is a single value, expected an array"),
    ],
)
def test_examples_of_another_kind_are_one_clear_error(
    class_path: str, arrays: dict[str, NDArray[np.generic]], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    (said,) = java(class_path, "org.sedge.android.ReadNpz", tmp_path / "bad.npz")
    assert message in said


def test_a_damaged_archive_is_one_clear_error(class_path: str, tmp_path: Path) -> None:
    """Each of 100 changed bytes of a stored file, and other files, gives examples or an error."""
    path = tmp_path / "good.npz"
    np.savez(path, x=X.astype(np.float32), y=np.array([1, 0]))
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    contents = [b"", b"no archive", good[: len(good) // 2]]
    for _ in range(100):
        changed = bytearray(good)
        changed[rng.integers(len(changed))] ^= int(rng.integers(1, 256))
        contents.append(bytes(changed))
    paths = [tmp_path / f"{index}.npz" for index in range(len(contents))]
    for file, content in zip(paths, contents, strict=True):
        file.write_bytes(content)
    said = java(class_path, "org.sedge.android.ReadNpz", *paths)
    assert len(said) == len(paths)
    assert all("not an .npz" in line for line in said[:3])
