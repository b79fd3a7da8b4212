"""Bundles in a folder and as one blob: whole, damaged, and made to harm."""

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from tests.fleet import bundle_of

from sedge_protocol.errors import CodecError, ConfigError, StorageError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import (
    EXECUTORCH,
    FROZEN_NAME,
    INIT_NAME,
    MANIFEST_NAME,
    MAX_BUNDLE_BYTES,
    ONNXRUNTIME,
    TORCH,
    Bundle,
    BundleManifest,
    load,
    pack,
    save,
    unpack,
)
from sedge_protocol.wire.frozen import frozen_blob, frozen_data

LAYOUT = Layout.of([("weight", (3, 4), Role.PARAMETER), ("bias", (3,), Role.PARAMETER)])
INIT = np.linspace(-1, 1, LAYOUT.size).astype(np.float32)
FILES = {"gradient": b"gradient" * 100, "predict": b"predict" * 50}
Fields = dict[str, object]


BUNDLE = bundle_of(LAYOUT, FILES, width=4, classes=3)
MANIFEST = BUNDLE.manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "bundle", BUNDLE, INIT)
    return tmp_path / "bundle"


def packed(manifest: bytes, files: object) -> bytes:
    """A blob from its parts, true or not."""
    return zlib.compress(msgspec.msgpack.encode({"manifest": manifest, "files": files}))


def fields() -> Fields:
    return cast(Fields, msgspec.to_builtins(MANIFEST))


def with_program(**changes: object) -> Fields:
    first = cast(Fields, msgspec.to_builtins(MANIFEST.programs[0]))
    return {**fields(), "programs": [{**first, **changes}]}


def with_axes(channels: list[int], dims: list[list[int]]) -> Fields:
    return {**fields(), "axes": {"channels": channels, "dims": dims}}


def test_a_file_larger_than_a_bundle_is_not_read(folder: Path) -> None:
    for name in ("manifest.json", "gradient"):
        kept = (folder / name).read_bytes()
        os.truncate(folder / name, MAX_BUNDLE_BYTES + 1)  # a hole: the disk holds nothing of it
        with pytest.raises(CodecError, match=f"{name}: expected at most {MAX_BUNDLE_BYTES} bytes"):
            load(folder)
        (folder / name).write_bytes(kept)
    assert load(folder)[0] == BUNDLE


def test_a_folder_goes_both_ways(folder: Path) -> None:
    found, init = load(folder)
    assert found == BUNDLE
    assert init.tobytes() == INIT.tobytes()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["gradient", "init.bin", "manifest.json", "predict"]


def test_a_blob_goes_both_ways_and_is_always_the_same() -> None:
    blob = pack(BUNDLE)
    assert (unpack(blob).manifest, unpack(blob).files) == (MANIFEST, FILES)
    assert pack(Bundle(MANIFEST, dict(reversed(FILES.items())))) == blob
    assert pack(unpack(blob)) == blob


def test_what_is_no_bundle(folder: Path) -> None:
    for path in (folder.parent, folder / INIT_NAME, folder / "none"):
        with pytest.raises(ConfigError, match=f"'{path}', expected a folder that sedge-export"):
            load(path)


@pytest.mark.parametrize("name", [INIT_NAME, "gradient"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StorageError, match=name):
        load(folder)


@pytest.mark.parametrize("size", [0, 4 * 14, 4 * 15 - 1, 4 * 16])
def test_an_init_of_another_length(folder: Path, size: int) -> None:
    (folder / INIT_NAME).write_bytes(bytes(size))
    with pytest.raises(CodecError):
        load(folder)


VALUES = np.linspace(3, 4, 6).astype(np.float32)
HELD = frozen_data(Layout.of([("base", (2, 3), Role.PARAMETER)]), VALUES)


@pytest.fixture
def with_frozen(tmp_path: Path) -> Path:
    manifest = msgspec.structs.replace(MANIFEST, frozen=HELD)
    save(tmp_path / "frozen", Bundle(manifest, FILES, VALUES), INIT)
    return tmp_path / "frozen"


def test_frozen_values_are_in_the_folder_and_not_in_the_blob(with_frozen: Path) -> None:
    bundle, _ = load(with_frozen)
    assert bundle.frozen is not None
    assert bundle.frozen.tobytes() == VALUES.tobytes()
    assert (with_frozen / FROZEN_NAME).read_bytes() == frozen_blob(VALUES)
    assert [tensor.name for tensor in bundle.manifest.tensors] == ["weight", "bias", "base"]
    found = unpack(pack(bundle))
    assert found.manifest == bundle.manifest
    assert found.frozen is None


@pytest.mark.parametrize("data", [None, b"", bytes(HELD.blob.size), frozen_blob(VALUES) + bytes(4)])
def test_frozen_values_that_are_not_the_manifests(with_frozen: Path, data: bytes | None) -> None:
    path = with_frozen / FROZEN_NAME
    if data is None:
        path.unlink()
        with pytest.raises(StorageError, match=FROZEN_NAME):
            load(with_frozen)
        return
    path.write_bytes(data)
    with pytest.raises(
        CodecError, match=f"{FROZEN_NAME}: (expected at most {HELD.blob.size} bytes|{len(data)} b)"
    ):
        load(with_frozen)


PATHS = ["../g.onnx", "/etc/passwd", "a/b", "./g.onnx", "g.onnx/", "a/../g.onnx"]


@pytest.mark.parametrize("name", PATHS)
def test_a_program_file_that_is_a_path(folder: Path, name: str) -> None:
    changed = with_program(file=name)
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(changed))
    with pytest.raises(CodecError, match="contains a path"):
        load(folder)
    with pytest.raises(CodecError, match="contains a path"):
        unpack(packed(msgspec.json.encode(changed), {name: FILES["gradient"]}))


@pytest.mark.parametrize("size", [1, 65536])
def test_the_smallest_and_the_largest_batch(size: int) -> None:
    manifest = msgspec.structs.replace(MANIFEST, batch_size=size)
    assert unpack(packed(msgspec.json.encode(manifest), FILES)).manifest.batch_size == size


HOSTILE_MANIFESTS: list[tuple[str, Callable[[], object]]] = [
    ("bundle format 2, this version reads 1", lambda: {**fields(), "format": 2}),
    ("bundle format None", lambda: {k: v for k, v in fields().items() if k != "format"}),
    ("bundle format '1'", lambda: {**fields(), "format": "1"}),
    ("batch_size 0, expected", lambda: {**fields(), "batch_size": 0}),
    (
        "parts of 5 numbers do not fit an input",
        lambda: {**fields(), "parts": [{"name": "a", "dtype": "float32", "shape": [5]}]},
    ),
    ("batch_size 65537, expected", lambda: {**fields(), "batch_size": 65537}),
    ("unknown program 'sneak'", lambda: with_program(name="sneak")),
    ("'gradient' does not match the manifest's sha256", lambda: with_program(sha256="00" * 32)),
    ("missing", lambda: with_program(file="evaluate.onnx")),
    ("dropped 1.0, expected at least 0 and below 1", lambda: {**fields(), "dropped": 1.0}),
    ("dropped -0.25, expected at least 0 and below 1", lambda: {**fields(), "dropped": -0.25}),
    ("1 labels, expected 3, one for each class, or none", lambda: {**fields(), "labels": ["a"]}),
    ("axes: 1 tensors, expected 2", lambda: with_axes([4], [[-1, 0]])),
    ("whose number of channels divides the extent", lambda: with_axes([2**70], [[-1, 0], [-1]])),
    ("Expected `int`", lambda: {**fields(), "num_classes": 1.5}),
    ("missing required field", lambda: {"format": 1}),
    ("no attribute 'get'", lambda: [1, 2]),
]


@pytest.mark.parametrize(("message", "make"), HOSTILE_MANIFESTS)
def test_a_manifest_that_is_not_as_it_should_be(
    folder: Path, message: str, make: Callable[[], object]
) -> None:
    text = json.dumps(make()).encode()
    with pytest.raises(CodecError, match=message):
        unpack(packed(text, FILES))
    (folder / MANIFEST_NAME).write_bytes(text)
    if message == "missing":  # in a folder that is a file that cannot be read
        return
    with pytest.raises(CodecError, match=message):
        load(folder)


def test_blobs_that_are_no_bundle() -> None:
    compress = zlib.compress
    nested = b"\x83\xa8manifest\xc4\x00\xa5files\x80\xa5later" + b"\x91" * 10**5 + b"\xc0"
    for blob in (
        b"",
        b"no zlib",
        compress(b"\xc0"),
        compress(b"\x82\xa8manifest\xc4\x00\xa5files\x81\xa2\xff\xfe\xc4\x00"),
        compress(b"\x82\xa8manifest\xc4\x00\xa5files\xdf\xff\xff\xff\xff"),
        compress(nested),
        packed(b"", []),
        packed(msgspec.json.encode(MANIFEST), {"gradient": b"", "predict": b""}),
    ):
        with pytest.raises(CodecError):
            unpack(blob)


def test_a_bundle_that_no_device_would_take_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = pack(BUNDLE)
    size = len(zlib.decompress(blob))
    monkeypatch.setattr(bundles, "MAX_BUNDLE_BYTES", size)
    assert unpack(pack(BUNDLE)).files == FILES
    monkeypatch.setattr(bundles, "MAX_BUNDLE_BYTES", size - 1)
    with pytest.raises(CodecError, match=f"bundle: {size} bytes, the limit is {size - 1}"):
        pack(BUNDLE)
    with pytest.raises(CodecError, match=f"the limit of {size - 1} bytes"):
        unpack(blob)


def test_a_backend_without_a_gradient_trains_nothing() -> None:
    gradient, predict = MANIFEST.programs
    programs = (gradient, msgspec.structs.replace(predict, backend="other"))
    manifest = msgspec.structs.replace(MANIFEST, programs=programs)
    assert Bundle(manifest, FILES).backends() == ("onnxruntime",)


def test_the_memory_that_a_job_takes_is_known_with_that_of_its_programs() -> None:
    """The least of the backends', in whole MB; 10 vectors of 15 numbers take 600 bytes."""

    def needed(manifest: BundleManifest, *backends: str) -> int:
        return manifest.memory_mb(backends, 10)

    gradient, _ = MANIFEST.programs
    one, other = (
        msgspec.structs.replace(gradient, backend=backend, memory_bytes=memory)
        for backend, memory in ((ONNXRUNTIME, 10_000_000 - 600), (EXECUTORCH, 40_000_000))
    )
    known = msgspec.structs.replace(MANIFEST, programs=(one, other))
    assert needed(known, ONNXRUNTIME) == needed(known, EXECUTORCH, ONNXRUNTIME) == 80
    assert needed(known, EXECUTORCH) == 93
    unknown = msgspec.structs.replace(MANIFEST, programs=(gradient, other))
    for manifest, backends in (
        (unknown, [ONNXRUNTIME, EXECUTORCH]),
        (known, [ONNXRUNTIME, TORCH]),
        (known, ["another"]),
    ):
        assert needed(manifest, *backends) == 0


def test_init_must_fit_the_layout(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match="theta"):
        save(tmp_path / "bundle", BUNDLE, INIT[:-1])
    assert not (tmp_path / "bundle").exists()
