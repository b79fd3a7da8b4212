"""The emulated devices' data and identities."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sedge_cloud.store import Store
from sedge_edge.data import Examples
from sedge_edge.runtime import Programs
from sedge_emulate.config import DataConfig
from sedge_emulate.devices import Site, enrol, share_out
from sedge_protocol.errors import DataError, StorageError
from sedge_protocol.keys import DeviceKeys

BASE = Path()
DIRICHLET = DataConfig(dataset="digits", alpha=0.3, min_examples=10)
PATHOLOGICAL = DataConfig(dataset="digits", split="pathological", classes_per_device=2)


def rows(*parts: Examples) -> list[bytes]:
    """Every example, label and pixels, sorted."""
    return sorted(
        bytes([int(label)]) + image.tobytes()
        for part in parts
        for image, label in zip(part.inputs, part.targets, strict=True)
    )


@pytest.mark.parametrize("config", [DIRICHLET, PATHOLOGICAL], ids=["dirichlet", "pathological"])
@pytest.mark.parametrize("devices", [1, 5, 12])
def test_every_example_is_used_once(config: DataConfig, devices: int) -> None:
    if config.split == "pathological" and devices == 1:
        config = msgspec.structs.replace(config, classes_per_device=10)
    dataset, shares = share_out(config, devices, 3, BASE)
    assert len(shares) == devices
    parts = [part for share in shares for part in (share.train, share.test)]
    assert sum(len(part.targets) for part in parts) == 1797
    assert rows(*parts) == rows(Examples(dataset.inputs, dataset.targets))


@pytest.mark.parametrize("config", [DIRICHLET, PATHOLOGICAL], ids=["dirichlet", "pathological"])
def test_the_same_seed_gives_the_same_parts_and_another_one_others(config: DataConfig) -> None:
    first, again, other = (share_out(config, 6, seed, BASE)[1] for seed in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        assert one.device == two.device
        for part, same in ((one.train, two.train), (one.test, two.test)):
            np.testing.assert_array_equal(part.inputs, same.inputs)
            np.testing.assert_array_equal(part.targets, same.targets)
    assert [len(s.train.targets) for s in first] != [len(s.train.targets) for s in other] or any(
        (one.train.targets != two.train.targets).any()
        for one, two in zip(first, other, strict=True)
    )


def test_fewer_examples_of_every_class() -> None:
    config = msgspec.structs.replace(DIRICHLET, examples=500, alpha=1.0)
    dataset, shares = share_out(config, 4, 0, BASE)
    assert len(dataset.targets) == 500
    assert sum(len(s.train.targets) + len(s.test.targets) for s in shares) == 500
    assert set(np.bincount(dataset.targets)) <= set(range(45, 55))


def test_each_device_tests_on_its_share() -> None:
    config = msgspec.structs.replace(DIRICHLET, test_fraction=0.25)
    for share in share_out(config, 6, 0, BASE)[1]:
        count = len(share.train.targets) + len(share.test.targets)
        assert count >= 10
        assert len(share.test.targets) == pytest.approx(count / 4, abs=1)
        labels = set(share.train.targets) | set(share.test.targets)
        assert share.num_classes == len(labels)


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (2, ["device-0", "device-1"]),
        (11, [f"device-{i:02d}" for i in range(11)]),
    ],
)
def test_names_sort_as_numbers(devices: int, names: list[str]) -> None:
    assert [share.device for share in share_out(DIRICHLET, devices, 0, BASE)[1]] == names


@pytest.mark.parametrize(
    ("config", "devices", "message"),
    [
        (DIRICHLET, 500, "1797 examples, expected 10 or more for each of 500"),
        (msgspec.structs.replace(DIRICHLET, dataset="nothing.npz"), 2, r"nothing\.npz"),
        (msgspec.structs.replace(DIRICHLET, dataset="nothing:load"), 2, "No module named"),
        (PATHOLOGICAL, 1, "pathological"),
    ],
)
def test_what_cannot_be_shared_out(config: DataConfig, devices: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        share_out(config, devices, 0, BASE)


def test_a_source_of_ones_own_is_looked_up_beside_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(60, 3)), y=np.arange(60) % 3)
    config = DataConfig(dataset="mine.npz", alpha=5.0, min_examples=5)
    dataset, shares = share_out(config, 3, 0, tmp_path)
    assert (dataset.name, dataset.num_classes) == ("mine.npz", 3)
    assert sum(len(s.train.targets) for s in shares) > 0


def test_enrolling_gives_store_and_device_the_same_secret(tmp_path: Path) -> None:
    shares = share_out(DIRICHLET, 3, 0, BASE)[1]
    store = Store(tmp_path / "cloud")
    with ThreadPoolExecutor(1) as pool:
        site = Site(
            "fleet", tmp_path, "mqtt://127.0.0.1:1", Programs("auto", 1), pool, lambda: None
        )
        runtimes = [enrol(share, site, store, seed=7) for share in shares]
        devices = {row.device: row for row in store.devices()}
        assert list(devices) == [share.device for share in shares]
        assert len({row.secret for row in devices.values()}) == 3
        for share, runtime in zip(shares, runtimes, strict=True):
            identity = runtime.agent.identity
            assert identity.keys == DeviceKeys.of(devices[share.device].secret)
            assert (identity.fleet, identity.device) == ("fleet", share.device)
            assert identity.hello.num_train == len(share.train.targets)
            # Runs of several strategies share a broker: the fleet's name keeps their sessions apart.
            assert runtime.link.settings.client_id == f"fleet-{share.device}"
            assert (tmp_path / share.device / "journal").exists()
    store.close()


def test_nothing_is_written_where_nothing_can_be(tmp_path: Path) -> None:
    (tmp_path / "device-0").write_text("in the way")
    share = share_out(DIRICHLET, 2, 0, BASE)[1][0]
    store = Store(tmp_path / "cloud")
    with ThreadPoolExecutor(1) as pool:
        site = Site("f", tmp_path, "mqtt://127.0.0.1:1", Programs("auto", 1), pool, lambda: None)
        with pytest.raises(StorageError, match="device-0"):
            enrol(share, site, store, seed=7)
    store.close()
