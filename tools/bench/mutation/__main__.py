"""Measures how many small faults the tests notice, with a seeded sample of mutants of central modules.

    python -m tools.bench mutation [--sample 150] [--seed 0] [--workers 2] [MODULE ...]

The tests run once without a mutant, which records the lines that each of them runs. A mutant's tests then
run in a copy of the tree. They are the tests that reach its line: its module's own first, then the fastest.
If none does, or if the line runs when its module is imported, they are the module's own files with their
fleets, all tests that reach the module, and those that compare the bounds of messages with pages and Java.
A test kills a mutant if it fails twice, or if one takes 60 s more than four times as long as the longest of
them without a mutant. Tests that fail without a mutant are named and left out. Each line names the test
that failed. Survivors are printed with their location and diff; a reader decides whether a test is missing
or the change makes no difference. The last line is JSON.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from tools.bench.mutation.mutants import Mutant, mutants_of
from tools.bench.mutation.reached import Reached

ROOT = Path(__file__).parents[3]
CENTRAL = (
    "cloud/sedge_cloud/coordinator.py",
    "edge/sedge_edge/agent.py",
    *(
        f"cloud/sedge_cloud/{room}/*.py"
        for room in ("runs", "rounds", "ingest", "store", "algorithms")
    ),
    *(f"protocol/sedge_protocol/{room}/*.py" for room in ("codec", "wire", "host")),
    *(f"edge/sedge_edge/{room}/*.py" for room in ("jobs", "rounds", "training/**")),
)
# They read the bounds of messages and the keys of configuration files wherever these are used.
OF_BOUNDS = ("tests/test_config_bounds.py", "tests/test_spec_command.py", "tests/test_docs.py")
TESTS = (
    "tests/system", "tests/paper", "tests/edge", "tests/cloud", "tests/protocol", "tests/conformance",
    "tests/hunt", "tests/emulate", *OF_BOUNDS,
)  # fmt: skip
SEARCH = ("cloud", "edge", "protocol", "tools/emulate", "tools/export", "tools/conformance", "")
NO_JAVA = ("-k", "not java")  # Java code contains no mutants
QUICK = "not fleet and not slow and not gpu"
HANGS = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)  # from faulthandler
NOTHING_TO_RUN = 5  # pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_in(
    tree: Path, options: Sequence[str], tests: Sequence[str], limit_s: float | None = None
) -> str:
    """Run tests in a tree. Returns "", or the end of pytest's output if one fails.

    A test has also failed if it takes longer than ``limit_s``.
    """
    search = [*(tree / folder for folder in SEARCH), ROOT]
    if limit_s is not None:  # kept by a thread that does not need Python's lock
        limits = (f"faulthandler_timeout={limit_s}", "faulthandler_exit_on_timeout=true")
        options = [*options, *(word for limit in limits for word in ("-o", limit))]
    # A file instead of a pipe, which would stay open as long as any process that the tests left behind, and
    # one instead of arguments, whose length has a limit.
    with tempfile.TemporaryFile("w+") as output, tempfile.NamedTemporaryFile("w") as names:
        names.write("\n".join(tests))
        names.flush()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                *options,
                f"@{names.name}",
            ],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, search))},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if process.wait() in (0, NOTHING_TO_RUN):
                return ""
            output.seek(0)
            said = output.read()
            return f"not finished after {limit_s:.0f} s" if HANGS.search(said) else said[-2000:]
        finally:
            with suppress(ProcessLookupError):  # pytest, or what its tests have left behind
                os.killpg(process.pid, 9)
            process.wait()


class Trees:
    """Copies of the tree, one for each worker, and what the tests reach in it."""

    def __init__(self, root: Path, folder: Path, workers: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._root = root
        caches = shutil.ignore_patterns("__pycache__", ".*_cache")
        top = shutil.ignore_patterns(".git", ".venv", "runs")  # a package is also called runs

        def ignored(path: str, names: list[str]) -> set[str]:
            return caches(path, names) | (top(path, names) if Path(path) == root else set())

        copies = [shutil.copytree(root, folder / str(n), ignore=ignored) for n in range(workers)]
        self.reached = self._record(Path(copies[0]), folder / "reached", workers)
        for copy in copies:
            self._free.put(Path(copy))

    def _record(self, tree: Path, lines: Path, workers: int) -> Reached:
        lines.mkdir()
        there = [test for test in TESTS if (tree / test).exists()]
        options = ["-p", "tools.bench.mutation.reached", "--reached", str(lines), "-m", QUICK]
        options += [*NO_JAVA, "-n", str(workers), "--dist", "loadfile"]
        said = pytest_in(tree, options, there)  # a failed test is in what was recorded, too
        reached = Reached(lines, tree)
        if not reached.seconds:
            raise SystemExit(f"the tests do not run even without a mutant:\n{said}")
        return reached

    def killer(self, mutant: Mutant) -> str:
        """Run a mutant's tests. Returns the test that failed, or "" if all passed."""
        tree = self._free.get()
        try:
            (tree / mutant.path).write_text(mutant.after)
            return self._failed_in(tree, self.tests(mutant))
        finally:
            (tree / mutant.path).write_text(mutant.before)
            self._free.put(tree)

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests to run on a mutant, in this order."""
        deliverable, _, *folders, module = mutant.path.parts
        own = f"tests/{'/'.join([deliverable, *folders])}/test_*{module.removesuffix('.py')}*.py"
        files = [str(path.relative_to(self._root)) for path in sorted(self._root.glob(own))]
        seconds = self.reached.seconds
        reaching, is_there = self.reached.tests(mutant.path, mutant.line)
        order = sorted(reaching, key=lambda test: (test.split("::")[0] not in files, seconds[test]))
        if is_there:
            return order
        return [*files, *order, *(test for test in OF_BOUNDS if (self._root / test).exists())]

    def _failed_in(self, tree: Path, tests: list[str]) -> str:
        limit_s = 60 + 4 * max((self.reached.seconds.get(test, 60) for test in tests), default=60)
        once: list[str] = []
        while True:
            options = ["-x", "-m", "not slow and not gpu", *NO_JAVA]
            options += [f"--deselect={test}" for test in once]
            failure = pytest_in(tree, options, tests, limit_s)
            line = re.search(r"^(?:FAILED|ERROR) (.+)", failure, re.MULTILINE)
            if line is None:
                return failure
            # A file that cannot be collected is named by itself.
            named = [test for test in tests if line[1].startswith(test)]
            failed = max(named, key=len, default=line[1].partition(" - ")[0])
            if pytest_in(tree, [], [failed], limit_s):
                return failed
            once.append(failed)


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Sample mutants, run the tests on each, and report the survivors."""
    parser = argparse.ArgumentParser(description="Sample mutants and run the tests on each.")
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("modules", nargs="*", default=CENTRAL, help="glob patterns of modules")
    asked = parser.parse_args(words)
    begun = time.monotonic()
    paths = sorted({path.relative_to(root) for glob in asked.modules for path in root.glob(glob)})
    everything = [mutant for path in paths for mutant in mutants_of(root, path)]
    mutants = random.Random(asked.seed).sample(everything, min(asked.sample, len(everything)))
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.workers) as pool:
        trees = Trees(root, Path(folder), asked.workers)
        for test in trees.reached.failed:
            print(f"{test} fails without a mutant", flush=True)
        for mutant, killer in zip(mutants, pool.map(trees.killer, mutants), strict=True):
            where = f"{mutant.path}:{mutant.line}"
            print(f"killed {where} by {killer}" if killer else f"SURVIVED {where}", flush=True)
            if not killer:
                survivors.append(where)
                print(mutant.diff(), flush=True)
    row = {"sample": len(mutants), "killed": len(mutants) - len(survivors), "survivors": survivors}
    print(json.dumps({**row, "seconds": round(time.monotonic() - begun), "seed": asked.seed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
