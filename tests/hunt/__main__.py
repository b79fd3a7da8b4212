"""Hunt for a violated invariant: ``python -m tests.hunt [--seeds A:B] [--minutes M] [--faults F …]``.

Without an end of the seeds it goes on until it is told to stop. The faults of a seed that fails are reduced
to those that it takes, which the last lines name, with the command that plays them again.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice

from tests.hunt.cases import Played, play

BATCH = 20
TRIES = 400


def played(seeds: Iterable[int], jobs: int) -> Iterator[Played]:
    """What became of each seed, as they end."""
    if jobs == 1:
        yield from map(play, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        left = iter(seeds)
        while batch := list(islice(left, BATCH * jobs)):
            yield from pool.imap_unordered(play, batch)


def shrink(found: Played) -> Played:
    """The same seed with as few of its faults as fail in the same way: first halves, then smaller parts."""
    tries, parts = 0, 2
    while tries < TRIES and len(found.struck) > 1 and parts <= len(found.struck):
        size = -(-len(found.struck) // parts)
        for start in range(0, len(found.struck), size):
            rest = found.struck[:start] + found.struck[start + size :]
            tries += 1
            tried = play(found.seed, rest)
            if kind(tried) == kind(found):
                found, parts = tried, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(found.struck))
    return found


def kind(found: Played) -> str:
    """The invariant that was violated, or the error."""
    return ":".join(found.error.split(":")[:2])


def report(found: Played) -> str:
    """A failure for people, and how to see it again."""
    faults = " ".join(found.struck)
    return "\n".join([
        f"seed {found.seed} ({found.case}): {found.error}",
        *found.trace,
        f"again: python -m tests.hunt --seeds {found.seed}:{found.seed + 1} --faults {faults}",
    ])  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument("--seeds", default="0:", help="first and one past the last, as 0:1000")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--faults", nargs="*", help="of the seeds' faults only these")
    given = parser.parse_args(words)
    first, _, end = given.seeds.partition(":")
    seeds: Iterable[int] = range(int(first), int(end)) if end else count(int(first))
    if given.faults is not None:
        found = [play(seed, given.faults) for seed in seeds]
        print("\n".join(report(one) if one.error else "\n".join(one.trace) for one in found))
        return int(any(one.error for one in found))
    began, number, faults = time.monotonic(), 0, 0
    try:
        for one in played(seeds, given.jobs):
            number, faults = number + 1, faults + len(one.struck)
            if one.error:
                print(f"seed {one.seed}: {one.error}; shrinking", flush=True)
                print(report(shrink(one)))
                return 1
            over = time.monotonic() - began
            if number % 500 == 0:
                print(f"{number} seeds, {faults} faults, {over:.0f} s", flush=True)
            if given.minutes is not None and over > 60 * given.minutes:
                break
    except KeyboardInterrupt:
        pass
    over = time.monotonic() - began
    print(f"{number} seeds from {first} on, {faults} faults, {over:.0f} s: no invariant violated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
