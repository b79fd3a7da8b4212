"""Records which lines of the product each test runs: a plugin for pytest, and the reader of its files.

    pytest -p tools.bench.mutation.reached --reached FOLDER ...

Every process of pytest writes two files into the folder: the lines of each test, and each test's seconds
and whether it passed. A test is named by its node id. What tests run in other processes is not recorded.
"""

import ast
import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import coverage
import pytest

PRODUCT = ("cloud", "edge", "protocol")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Recorder:
    """Records the tests of one process of pytest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()
        present = [str(Path(name).resolve()) for name in PRODUCT if Path(name).exists()]
        # No data file: a test that forks or closes every file would break it.
        self._lines = coverage.Coverage(
            data_file=None, source=present, config_file=False, messages=False
        )
        self._lines.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._lines.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._lines.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._lines.stop()
        files = self._folder / str(os.getpid())
        files.with_suffix(".lines").write_bytes(self._lines.get_data().dumps())
        outcome = {"seconds": self._seconds, "failed": [*self._failed]}
        files.with_suffix(".json").write_text(json.dumps(outcome))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--reached``."""
    parser.addoption("--reached", type=Path, help="folder for the lines that each test runs")


def pytest_configure(config: pytest.Config) -> None:
    """Record this process's tests if it runs any: xdist's controller only hands them out."""
    hands_out = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if (folder := config.getoption("reached")) and not hands_out:
        config.pluginmanager.register(Recorder(folder))


class Reached:
    """The tests that passed without a mutant, and the lines that they ran in a tree."""

    def __init__(self, folder: Path, tree: Path) -> None:
        self._tree = tree.resolve()
        self._lines = coverage.CoverageData(no_disk=True)
        for file in folder.glob("*.lines"):
            part = coverage.CoverageData(no_disk=True)
            part.loads(file.read_bytes())
            self._lines.update(part)
        outcomes = [json.loads(file.read_text()) for file in folder.glob("*.json")]
        self.seconds: dict[str, float] = {}
        for outcome in outcomes:
            self.seconds |= outcome["seconds"]
        self.failed = sorted(test for outcome in outcomes for test in outcome["failed"])

    def tests(self, module: Path, line: int) -> tuple[set[str], bool]:
        """Return the passing tests that ran the statement at ``line`` of a module, and True.

        If none did, or if the statement runs when the module is imported, return the tests that ran any
        line of the module, and False.
        """
        ran = self._lines.contexts_by_lineno(str(self._tree / module))
        heads = _heads_in_functions((self._tree / module).read_text(), line)
        there = self._passing(test for head in heads for test in ran.get(head, ()))
        if there:
            return there, True
        return self._passing(test for tests in ran.values() for test in tests), False

    def _passing(self, tests: Iterable[str]) -> set[str]:
        return set(tests) - {"", *self.failed}


def _heads_in_functions(source: str, line: int) -> set[int]:
    """Return ``line`` and where the statements around it begin, or nothing outside of functions.

    A statement of several lines counts as run at the line where it begins.
    """
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    begins = [node.body[0].lineno for node in around if isinstance(node, FUNCTIONS)]
    if not any(first <= line for first in begins):
        return set()
    # A compound statement, such as an if, counts as run only at its head.
    bodies = [getattr(node, "body", None) for node in around]
    heads = zip(around, bodies, strict=True)
    return {line} | {node.lineno for node, body in heads if not body or line < body[0].lineno}
