"""[frozen] of edge.toml: a base that is on the device already is not sent, and a wrong one costs a line."""

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.edge.harness import Harness
from tests.edge.home import make_home
from tests.edge.rounds.test_frozen_data import BLOB, CODED, VALUES, chunks, give

from sedge_edge.config import load_config
from sedge_edge.own_files import DeviceBlobs, check_files, own_files
from sedge_protocol.codec.values import ValueCoding, decoded_values
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.frozen import frozen_blob

WRONG = CODED[:70_000] + bytes(10) + CODED[70_010:]  # in the second of four chunks
OTHER = frozen_blob(decoded_values(VALUES, ValueCoding.BF16))


class WithFiles(Harness):
    """A device with files of its own."""

    def __init__(self, folder: Path, files: dict[bytes, Path]) -> None:
        self._files = files
        super().__init__(folder)

    def blobs(self) -> BlobFolder:
        return DeviceBlobs(self.folder, files=self._files)


@pytest.mark.parametrize(
    ("data", "sent", "why"),
    [
        (CODED, 0, ""),
        (WRONG, 1, "1 of 4 chunks do not match the base"),
        (CODED[:99_000], 4, f"has 99000 bytes, expected {BLOB.size}"),
        (None, 4, "No such file or directory"),
    ],
)
def test_a_base_that_is_here_is_not_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | None, sent: int, why: str
) -> None:
    path = tmp_path / "base.bin"
    if data is not None:
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "sedge.edge"):
        device = WithFiles(tmp_path / "device", {BLOB.sha256: path})
        device.connect()
        bundle = give(device)
        device.settle()
    assert np.isfinite(device.delta()).all()
    assert chunks(device) == sent + bundle.count + device.order(1).model.count
    assert [why in text for text in caplog.messages] == ([True] if why else [])
    assert data is None or path.read_bytes() == data  # it stays as it is


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (
            OTHER,
            "; {path} has as many values, but as bf16: another precision of the base or another base",
        ),
        (VALUES[:7].tobytes(), ""),
        (frozen_blob(VALUES[:7]), ""),
        (None, "; {path}: No such file or directory"),
    ],
    ids=["another precision", "not coded", "another model's", "missing"],
)
def test_a_base_that_is_none_of_the_files_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | None, what: str
) -> None:
    path = tmp_path / "other.bin"
    if data is not None:
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "sedge.edge"):
        device = WithFiles(tmp_path / "device", {bytes(32): path})
        device.connect()
        for number in (1, 2):
            give(device, number)
            device.settle()
    said = f"none of the files in [frozen]{what.format(path=path)}; downloading it"
    assert caplog.messages == [f"base {BLOB.sha256.hex()[:16]}: {said}"]


@pytest.mark.parametrize("name", ["ab", "zz" * 32, "", "ab" * 33])
def test_a_name_is_a_digest(name: str) -> None:
    with pytest.raises(ConfigError, match=r"frozen: found .*, expected 64 hex digits"):
        own_files({name: Path("x")})


def test_a_file_may_be_named_from_the_configurations_folder(tmp_path: Path) -> None:
    config = make_home(tmp_path)
    name = BLOB.sha256.hex()
    config.write_text(f'{config.read_text()}[frozen]\n"{name}" = "base.bin"\n')
    assert own_files(load_config(config).frozen) == {BLOB.sha256: tmp_path / "base.bin"}


def test_what_the_doctor_says(tmp_path: Path) -> None:
    path = tmp_path / "base.bin"
    path.write_bytes(CODED)
    files = own_files({BLOB.sha256.hex(): path})
    assert check_files(files, BLOB.sha256).endswith("the newest run's base is one of them")
    assert check_files(files, bytes(32)).endswith("the newest run's base is not one of them")
    path.write_bytes(WRONG)
    with pytest.raises(StorageError, match=r"has SHA-256 .*, expected"):
        check_files(files, None)
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        check_files(files, None)
