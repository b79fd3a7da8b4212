"""Measures how many small faults the tests notice, with a seeded sample of mutants of central modules.

    python -m tools.bench mutation [--sample 150] [--seed 0] [--workers 2] [MODULE ...]

A mutant is a module with one change: a comparison, arithmetic or boolean operator is replaced, a constant
is off by one, a condition is negated, a statement is deleted, or a function returns None. The tests run on
each mutant in a copy of the tree, nearest first: those that mirror the module's path, those in its folder,
those of its deliverable, then those in WIDER. The first failure kills the mutant, and so does a stage that
takes over four times as long as on the unchanged tree, plus 30 s. Each line names the test that failed: one
that has nothing to do with the module may be sensitive to timing. Survivors are printed with their location
and diff; a reader decides whether a test is missing or the change makes no difference. The last line is
JSON.
"""

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
CENTRAL = (
    "cloud/sedge_cloud/coordinator.py",
    "edge/sedge_edge/agent.py",
    *(
        f"cloud/sedge_cloud/{room}/*.py"
        for room in ("runs", "rounds", "ingest", "store", "algorithms")
    ),
    *(f"protocol/sedge_protocol/{room}/*.py" for room in ("codec", "wire", "host")),
    *(f"edge/sedge_edge/{room}/*.py" for room in ("rounds", "training")),
)
WIDER = (
    "tests/test_config_bounds.py",
    "tests/test_spec_command.py",  # pages and Java state the bounds of messages
    "tests/test_docs.py",  # checks the documented defaults and bounds
    "tests/protocol",
    "tests/cloud",
    "tests/edge",
    "tests/system",
    "tests/paper",
)
SEARCH = ("cloud", "edge", "protocol", "tools/emulate", "tools/export", "")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
# Parts that are not mutated: what a type checker already checks, and messages for people.
TYPES = ("annotation", "returns")  # except calls, as in Annotated[int, Meta(ge=1)]
SKIPPED = {"decorator_list", "exc", "frozen", "strict"}
NOTHING_TO_RUN = 5  # pytest.ExitCode.NO_TESTS_COLLECTED: all are fleets or slow


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path
    line: int
    before: str
    after: str

    def diff(self) -> str:
        lines = self.before.splitlines(), self.after.splitlines()
        return "\n".join([*difflib.unified_diff(*lines, str(self.path), n=1, lineterm="")][2:])


def alternatives(node: ast.AST) -> Iterator[str]:
    """Yield the source texts that may replace a node."""
    match node:
        case ast.Compare(left, ops, rights):
            for place, op in enumerate(ops):
                other = [*ops[:place], COMPARISONS[type(op)](), *ops[place + 1 :]]
                yield ast.unparse(ast.Compare(left, other, rights))
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            yield ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield ast.unparse(operand)
        case ast.Constant(bool(value)):
            yield repr(not value)
        case ast.Constant(int(value) | float(value)):
            yield repr(value + 1)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue():
            yield "pass"
        case _:
            pass


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each replaceable node at or below this one, with its replacement."""
    yield from ((node, text) for text in alternatives(node))
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, f"not {ast.unparse(test)}"
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"
        case _:
            pass
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.JoinedStr) or {name, getattr(child, "arg", "")} & SKIPPED:
                continue
            if child and name in TYPES:
                calls = [n for n in ast.walk(child) if isinstance(n, ast.Call)]
                yield from (change for call in calls for change in changes(call))
            elif isinstance(child, ast.AST):
                yield from changes(child)


def mutants_of(root: Path, path: Path) -> list[Mutant]:
    """Return every mutant of the module at ``path``, which is relative to ``root``."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node, text in changes(ast.parse(source)):
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno and node.end_col_offset
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        after = source[:begin] + text.encode() + source[end:]
        found.append(Mutant(path, node.lineno, source.decode(), after.decode()))
    return found


def stages_of(root: Path, path: Path) -> list[tuple[str, ...]]:
    """Return the stages of tests to run on mutants of a module, nearest first."""
    deliverable, _, *folders, _ = path.parts
    whole = f"tests/{deliverable}"
    home = "/".join([whole, *folders])
    mirrored = sorted((root / home).glob(f"test_*{path.stem}*.py"))
    wider = tuple(folder for folder in WIDER if folder != whole and (root / folder).exists())
    stages = [tuple(str(test.relative_to(root)) for test in mirrored), (home,), (whole,), wider]
    return [stage for place, stage in enumerate(stages) if stage and stage not in stages[:place]]


def failure_of(tree: Path, tests: Sequence[str], limit_s: float | None) -> str:
    """Run tests in a tree. Returns the end of pytest's output if they fail or take too long, else "".

    Folders run without their fleets. A module's own tests run with them: a server's client has no others.
    """
    fleets = all(test.endswith(".py") for test in tests)
    marks = "not slow and not gpu" if fleets else "not slow and not gpu and not fleet"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", marks]
    options += ["-k", "not java"]  # Java code contains no mutants
    search = os.pathsep.join(str(tree / folder) for folder in SEARCH)
    # A file instead of a pipe, which would stay open as long as any process that the tests left behind.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree,
            env={
                **os.environ,
                "PYTHONPATH": search,
                "PYTHONDONTWRITEBYTECODE": "1" if limit_s else "",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if process.wait(limit_s) in (0, NOTHING_TO_RUN):
                return ""
            output.seek(0)
            return output.read()[-2000:]
        except subprocess.TimeoutExpired:
            return f"not finished after {limit_s} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


class Trees:
    """Copies of the tree, one for each worker."""

    def __init__(self, root: Path, folder: Path, workers: int) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        self._root = root
        self._seconds: dict[tuple[str, ...], float] = {}
        caches = shutil.ignore_patterns("__pycache__", ".*_cache")
        top = shutil.ignore_patterns(".git", ".venv", "runs")  # a package is also called runs

        def ignored(path: str, names: list[str]) -> set[str]:
            return caches(path, names) | (top(path, names) if Path(path) == root else set())

        for number in range(workers):
            self.free.put(Path(shutil.copytree(root, folder / str(number), ignore=ignored)))

    def killer(self, mutant: Mutant) -> str:
        """Run all stages on a mutant, each with a time limit.

        Returns the failed test, or "" if all passed.
        """
        for tests in stages_of(self._root, mutant.path):
            limit_s = 30 + 4 * self._unchanged_s(tests)
            if failure := self._failure(mutant, tests, limit_s):
                named = re.search(r"^(?:FAILED|ERROR) (\S+)", failure, re.MULTILINE)
                return named[1] if named else failure.splitlines()[-1]
        return ""

    def _failure(self, mutant: Mutant, tests: tuple[str, ...], limit_s: float) -> str:
        tree = self.free.get()
        try:
            (tree / mutant.path).write_text(mutant.after)
            return failure_of(tree, tests, limit_s)
        finally:
            (tree / mutant.path).write_text(mutant.before)
            self.free.put(tree)

    def _unchanged_s(self, tests: tuple[str, ...]) -> float:
        """Return the seconds that the tests take without a mutant. Exits if they fail twice."""
        if tests not in self._seconds:
            tree, begun = self.free.get(), time.monotonic()
            try:
                # Twice, so that one test that is sensitive to timing does not end an hour's work.
                if failure_of(tree, tests, None) and (failure := failure_of(tree, tests, None)):
                    raise SystemExit(f"{' '.join(tests)} fail even without a mutant:\n{failure}")
            finally:
                self.free.put(tree)
            self._seconds[tests] = time.monotonic() - begun
        return self._seconds[tests]


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
        for mutant, killer in zip(mutants, pool.map(trees.killer, mutants), strict=True):
            where = f"{mutant.path}:{mutant.line}"
            print(f"killed {where} by {killer}" if killer else f"SURVIVED {where}", flush=True)
            if not killer:
                survivors.append(where)
                print(mutant.diff(), flush=True)
    row = {"sample": len(mutants), "killed": len(mutants) - len(survivors), "survivors": survivors}
    print(json.dumps({**row, "seconds": round(time.monotonic() - begun), "seed": asked.seed}))
    return 0
