"""Who holds which examples."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from sedge_edge.training.examples import Examples
from sedge_emulate.config import DataConfig
from sedge_emulate.data.shares import Shares, share_out
from sedge_protocol.errors import DataError, StorageError

BASE = Path()
DIRICHLET = DataConfig(dataset="digits", alpha=0.3, min_examples=10)
PATHOLOGICAL = DataConfig(dataset="digits", split="pathological", classes_per_device=2)
IID = DataConfig(dataset="digits", split="iid")
NATURAL = DataConfig(dataset="own.npz", split="natural", min_examples=4)
GIVEN = DataConfig(dataset="own.npz", split="given", partition="p.json")
SPLITS = (DIRICHLET, PATHOLOGICAL, IID)
IDS = ["dirichlet", "pathological", "iid"]


def rows(*parts: Examples) -> list[bytes]:
    """Every example, label and pixels, sorted."""
    return sorted(
        bytes([int(label)]) + image.tobytes()
        for part in parts
        for image, label in zip(part.inputs, part.targets, strict=True)
    )


@pytest.mark.parametrize("config", SPLITS, ids=IDS)
@pytest.mark.parametrize("devices", [1, 5, 12])
def test_every_example_is_used_once(config: DataConfig, devices: int) -> None:
    if config.split == "pathological" and devices == 1:
        config = replace(config, classes_per_device=10)
    dataset, shares = share_out(config, devices, 3, BASE)
    assert len(shares) == devices
    parts = [part for number in range(devices) for part in shares.examples(number)]
    assert sum(len(part.targets) for part in parts) == 1797
    assert rows(*parts) == rows(Examples(dataset.inputs, dataset.targets))


@pytest.mark.parametrize("config", SPLITS, ids=IDS)
def test_the_same_seed_gives_the_same_parts_and_another_one_others(config: DataConfig) -> None:
    first, again, other = (share_out(config, 6, seed, BASE)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.train, again.train)
    np.testing.assert_array_equal(first.test_ends, again.test_ends)
    assert not np.array_equal(first.train, other.train)


def test_a_split_with_a_seed_of_its_own_is_the_same_under_every_seed_of_the_fleet() -> None:
    config = replace(DIRICHLET, seed=1)
    first, again = (share_out(config, 6, seed, BASE)[1] for seed in (2, 3))
    np.testing.assert_array_equal(first.train, again.train)
    np.testing.assert_array_equal(first.train, share_out(DIRICHLET, 6, 1, BASE)[1].train)


def test_each_device_tests_on_its_share() -> None:
    config = replace(DIRICHLET, test_fraction=0.25)
    shares = share_out(config, 6, 0, BASE)[1]
    for number in range(6):
        train, test = shares.examples(number)
        trained, tested = shares.num_train(number), shares.num_test(number)
        assert (len(train.targets), len(test.targets)) == (trained, tested)
        assert trained + tested >= 10
        assert tested == pytest.approx((trained + tested) / 4, abs=1)
        assert shares.num_classes(number) == len(set(train.targets) | set(test.targets))


def test_names_sort_as_numbers() -> None:
    for devices, first in ((10, "device-0"), (11, "device-00")):
        shares = share_out(DIRICHLET, devices, 0, BASE)[1]
        names = [shares.name(number) for number in range(devices)]
        assert names[0] == first and names == sorted(names)


@pytest.mark.parametrize(
    ("config", "devices", "message"),
    [
        (DIRICHLET, 500, "1797 examples, expected 10 or more for each of 500"),
        (replace(DIRICHLET, dataset="nothing.npz"), 2, r"nothing\.npz"),
        (replace(DIRICHLET, dataset="nothing:load"), 2, "there is no module nothing"),
        (PATHOLOGICAL, 1, "pathological"),
        (IID, 200, "iid: a device with 8 examples, expected at least data.min_examples = 10"),
        (replace(IID, split="natural"), 2, "digits: no groups to split by"),
        (replace(PATHOLOGICAL, min_examples=500), 6, r"pathological: a device with \d+ exam.* 500"),
    ],
)
def test_what_cannot_be_shared_out(config: DataConfig, devices: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        share_out(config, devices, 0, BASE)


def test_saved_and_mapped_from_disk_they_are_the_same(tmp_path: Path) -> None:
    shares = share_out(DIRICHLET, 5, 0, BASE)[1]
    shares.save(tmp_path / "data")
    opened = Shares.open(tmp_path / "data")
    assert isinstance(opened.inputs, np.memmap)
    assert len(opened) == 5
    for number in range(5):
        for part, same in zip(shares.examples(number), opened.examples(number), strict=True):
            np.testing.assert_array_equal(part.inputs, same.inputs)
            np.testing.assert_array_equal(part.targets, same.targets)
            assert not isinstance(same.inputs, np.memmap) or same.inputs.base is None


def test_a_folder_without_shares(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="read shares"):
        Shares.open(tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Forty examples of five people; the fourth has three only."""
    people = np.repeat(["eve", "bob", "ann", "dan", "cid"], [8, 9, 10, 3, 10])
    x = np.arange(40, dtype=np.float32)[:, None]
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(40) % 2, group=people)
    return tmp_path


def held(shares: Shares, number: int) -> list[int]:
    return sorted(int(x) for part in shares.examples(number) for x in part.inputs[:, 0])


def test_a_device_is_a_person(own: Path) -> None:
    dataset, shares = share_out(NATURAL, 4, 0, own)
    assert len(dataset.targets) == 40
    # By name: ann, bob, cid, eve. Dan has too little.
    assert [held(shares, i)[0] for i in range(4)] == [17, 8, 30, 0]
    assert [len(held(shares, i)) for i in range(4)] == [10, 9, 10, 8]
    drawn = {tuple(held(share_out(NATURAL, 2, seed, own)[1], 0)) for seed in range(9)}
    assert len(drawn) > 1  # of more people than devices, others with another seed
    with pytest.raises(DataError, match=r"natural: 4 groups of 4 or more examples, expected .* 5"):
        share_out(NATURAL, 5, 0, own)


def test_settings_are_chosen_on_the_last_training_examples_of_each_class(own: Path) -> None:
    whole = share_out(NATURAL, 4, 0, own)[1]
    config = replace(NATURAL, validation=0.5)
    shares = share_out(config, 4, 0, own)[1]
    for number in range(4):
        usual = whole.examples(number)[0]
        trained, tested = ([int(x) for x in p.inputs[:, 0]] for p in shares.examples(number))
        for label in (0, 1):
            members = [int(x) for x in usual.inputs[usual.targets == label, 0]]
            count = int(0.5 * len(members))
            last = members[len(members) - count :]
            assert [x for x in tested if x % 2 == label] == last
            # Windows overlap: the one before the first that is tested on is nobody's.
            kept = members[: len(members) - count - 1] if count else members
            assert [x for x in trained if x % 2 == label] == kept


@pytest.mark.parametrize(
    ("share", "wrong"), [(0.01, "0.01 is too small .* to test"), (0.9, "0.9 is too large .* on")]
)
def test_a_validation_that_leaves_nothing(own: Path, share: float, wrong: str) -> None:
    with pytest.raises(DataError, match=f"device 0: data.validation = {wrong}"):
        share_out(replace(NATURAL, validation=share), 4, 0, own)


def test_a_function_names_the_groups_and_a_smaller_data_set_keeps_them(own: Path) -> None:
    (own / "grouped.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    whose = np.arange(60) // 20\n"
        "    return np.c_[whose, np.arange(60)].astype('f4'), np.arange(60) % 2, whose\n"
        "def wrong(): return np.zeros((3, 1)), np.zeros(3, int), np.zeros(4, int)\n"
    )
    config = DataConfig(dataset="grouped:load", split="natural", examples=30, min_examples=2)
    shares = share_out(config, 3, 0, own)[1]
    for number in range(3):
        assert all((part.inputs[:, 0] == number).all() for part in shares.examples(number))
    with pytest.raises(DataError, match=r"group is int64 of shape \(4,\), expected .* \(3,\)"):
        share_out(replace(config, dataset="grouped:wrong"), 3, 0, own)


def test_a_file_says_who_has_what(own: Path) -> None:
    parts = [[0, 1, 2, 3], {"train": [9, 8], "test": [7]}]
    (own / "p.json").write_bytes(msgspec.json.encode(parts))
    shares = share_out(GIVEN, 2, 0, own)[1]
    assert held(shares, 0) == [0, 1, 2, 3]
    assert [part.inputs[:, 0].tolist() for part in shares.examples(1)] == [[9, 8], [7]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], [2, 3], [4, 5]], r"p.json: 3 devices, expected devices = 2"),
        ([[0, 1], [2]], r"p.json: device 1: 1 examples, expected 2 or more"),
        ([[0, 1], {"train": [2, 3], "test": []}], "device 1: no test examples"),
        ([[0, 1], {"train": [], "test": [2]}], "device 1: no training examples"),
    ],
)
def test_a_file_that_does_not_fit_the_fleet(own: Path, parts: list[object], message: str) -> None:
    (own / "p.json").write_bytes(msgspec.json.encode(parts))
    with pytest.raises(DataError, match=message):
        share_out(GIVEN, 2, 0, own)
