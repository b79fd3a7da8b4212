"""The rules of this repository that no type checker knows: who imports what, and what has a test.

Each rule is a function of the sources, and each is also shown to fail on a source that breaks it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "sedge_protocol": "protocol",
    "sedge_cloud": "cloud",
    "sedge_edge": "edge",
    "sedge_emulate": "tools/emulate",
    "sedge_export": "tools/export",
}
# Imports run one way: protocol <- edge, protocol <- cloud, all <- emulate; export uses protocol only.
MAY_IMPORT: dict[str, set[str]] = {
    "sedge_protocol": set(),
    "sedge_cloud": {"sedge_protocol"},
    "sedge_edge": {"sedge_protocol"},
    "sedge_export": {"sedge_protocol"},
    "sedge_emulate": {"sedge_protocol", "sedge_cloud", "sedge_edge", "sedge_export"},
}
# What reaches outside the process, or makes a result depend on more than the arguments.
OUTSIDE = {
    "asyncio", "datetime", "multiprocessing", "os", "paho", "random", "secrets", "select",
    "selectors", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# Every module of protocol, cloud and edge is pure but these; each with what it is there for.
SHELLS: dict[str, set[str]] = {
    "sedge_protocol.blobs": {"os", "secrets", "time"},
    "sedge_protocol.console": {"os", "select"},
    "sedge_protocol.disk": {"os"},
    "sedge_protocol.journal": {"os"},
    "sedge_protocol.loop": {"os", "select", "socket", "time"},
    "sedge_protocol.onnx_runtime": {"os"},
    "sedge_protocol.mqtt": {"paho", "secrets", "select", "socket", "ssl", "time"},
    "sedge_protocol.privileges": {"os"},
    "sedge_protocol.probe": {"secrets", "time"},
    "sedge_protocol.systemd": {"os", "socket"},
    "sedge_cloud.__main__": {"time"},
    "sedge_cloud.administration": {"os", "time"},
    "sedge_cloud.doctor": {"time"},
    "sedge_cloud.enrolment": {"os"},
    "sedge_cloud.service": {"secrets", "time"},
    "sedge_cloud.store": {"os", "sqlite3", "time"},
    "sedge_edge.__main__": {"time"},
    "sedge_edge.backend_onnx": {"threading"},
    "sedge_edge.config": {"os"},
    "sedge_edge.doctor": {"time"},
    "sedge_edge.memory_limit": {"os"},
    "sedge_edge.runtime": {"threading", "time"},
}
# The cores, and all the mathematics: these can never become shells.
PURE = {
    "sedge_protocol": "axes codec.bitmaps codec.blockwise codec.compression codec.exponent_order codec.gaps codec.masks "
    "codec.patch_levels codec.top_k codec.values codec.vector effects errors frame importance keys layout "
    "messages peer program protobuf topics transfer update",
    "sedge_cloud": "aggregate alignment allowance apfl baselines cac cohorts coordinator ditto downloads "
    "events fedbn fedper fedprox fedrep fedrolex fedselect fleet guarded heterofl housekeeping inbox "
    "ledger memories obp orders overlap parts personal plans prefixes purin robust rounds rows schema "
    "sizes strategies strategy subflot submodel transport updates vectors vetting widths",
    "sedge_edge": "agent batches critical descent fetching greeting lesson outbox start state trainer work",
}
# Modules without a test file of their own name, and where they are tested.
TESTED_ELSEWHERE: dict[str, tuple[str, str]] = {
    "sedge_protocol.effects": ("tests/edge/test_runtime.py", "four records without a line of code"),
    "sedge_protocol.errors": ("tests/test_repository.py", "the tree in its docstring"),
    "sedge_cloud.events": ("tests/cloud/test_service.py", "four records without a line of code"),
    "sedge_cloud.strategy": ("tests/cloud/test_strategies.py", "records and a protocol"),
    "sedge_protocol.onnx_runtime": ("tests/edge/test_backend_onnx.py", "the device's sessions"),
    "sedge_emulate.run": ("tests/emulate/test_emulate_main.py", "the command line, whole"),
    "sedge_emulate.reproduce.arguments": ("tests/emulate/test_command.py", "the command line"),
    "sedge_emulate.reproduce.setting": ("tests/emulate/test_play.py", "a record and a protocol"),
    "sedge_export.__main__": ("tests/export/test_export_cli.py", "the command line"),
    "sedge_export.": ("tests/export/test_export_programs.py", "its parts are one compiler"),
    "sedge_export.lowering.": ("tests/export/test_export_ops.py", "operator by operator"),
}
MAX_LINES = 400
# Longer than that, and why they are not two files.
LONG: dict[str, int] = {
    "sedge_protocol.mqtt": 480,  # the one file that owns paho
    "sedge_cloud.coordinator": 430,  # one state machine, one method for each message
}
PUBLIC = {
    "sedge_protocol": "Codec Compression Layout Metrics Role SedgeError SparseVector Tensor Theta "
    "Training ValueCoding decode encode top_k",
    "sedge_cloud": "Assignment Memory RunConfig State Store Strategy Update start_run",
    "sedge_edge": "VERSION Agent Examples PersonalModel Trainer personal_model predict_file",
    "sedge_emulate": "Result read_json",
    "sedge_export": "cross_entropy export squared_error",
}


def found(folder: Path, pattern: str) -> list[Path]:
    """The files that match; a guard that looks at none would pass for ever."""
    paths = sorted(p for p in folder.rglob(pattern) if "__pycache__" not in p.parts and p.is_file())
    assert paths, f"no {pattern} in {folder}: the guard guards nothing"
    return paths


def modules() -> dict[str, Path]:
    """Every source file by the name of its module."""
    return {
        ".".join(path.relative_to(ROOT / folder).with_suffix("").parts): path
        for package, folder in PACKAGES.items()
        for path in found(ROOT / folder / package, "*.py")
    }


MODULES = modules()


@cache
def imports(source: str) -> frozenset[str]:
    """The full names of the modules that a source imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def tops(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def wrong_direction(package: str, source: str) -> set[str]:
    """The sister packages that a source must not know."""
    sisters = tops(imports(source)) & set(PACKAGES)
    return sisters - MAY_IMPORT[package] - {package}


def reaches_outside(module: str, source: str) -> set[str]:
    """What a source imports of the outside world beyond what it is there for."""
    return (tops(imports(source)) & OUTSIDE) - SHELLS.get(module, set())


# Imports.


def test_imports_run_one_way() -> None:
    for module, path in MODULES.items():
        package = module.partition(".")[0]
        assert not wrong_direction(package, path.read_text()), module


def test_the_cores_are_pure() -> None:
    for module, path in MODULES.items():
        if module.partition(".")[0] in PURE:
            assert not reaches_outside(module, path.read_text()), module
    named = {f"{package}.{name}" for package, names in PURE.items() for name in names.split()}
    assert named <= MODULES.keys()
    assert not named & SHELLS.keys()


def test_no_shell_is_listed_for_nothing() -> None:
    for module, allowed in SHELLS.items():
        assert allowed == tops(imports(MODULES[module].read_text())) & OUTSIDE, module


def test_one_file_owns_each_library() -> None:
    for library, owner in (
        ("onnxruntime", "sedge_protocol.onnx_runtime"),
        ("paho", "sedge_protocol.mqtt"),
        ("sqlite3", "sedge_cloud.store"),
    ):
        users = [m for m, path in MODULES.items() if library in tops(imports(path.read_text()))]
        assert users == [owner]


def test_nothing_else_loads_onnxruntime() -> None:
    """Not even a test or a benchmark: only there is it kept from reporting to its maker."""
    for folder in ("tests", "tools", "examples"):
        for path in found(ROOT / folder, "*.py"):
            assert "onnxruntime" not in tops(imports(path.read_text())), path


@pytest.mark.parametrize(
    ("package", "source", "wrong"),
    [
        ("sedge_edge", "import sedge_cloud.store", {"sedge_cloud"}),
        ("sedge_edge", "def f():\n    from sedge_cloud import Store", {"sedge_cloud"}),
        ("sedge_protocol", "from sedge_edge.agent import Agent", {"sedge_edge"}),
        ("sedge_export", "import sedge_emulate", {"sedge_emulate"}),
        ("sedge_emulate", "import sedge_cloud, sedge_edge, sedge_export", set[str]()),
        ("sedge_edge", "from sedge_protocol.frame import Frame", set[str]()),
    ],
)
def test_the_guard_sees_the_direction(package: str, source: str, wrong: set[str]) -> None:
    assert wrong_direction(package, source) == wrong


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("sedge_edge.agent", "import time", {"time"}),
        ("sedge_edge.agent", "def f():\n    from os import path", {"os"}),
        ("sedge_cloud.rounds", "import paho.mqtt.client as paho", {"paho"}),
        ("sedge_cloud.service", "import time\nimport socket", {"socket"}),
        ("sedge_cloud.obp", "import numpy as np", set[str]()),
    ],
)
def test_the_guard_sees_the_outside(module: str, source: str, wrong: set[str]) -> None:
    assert reaches_outside(module, source) == wrong


def test_no_package_is_imported_by_its_folder() -> None:
    """``import protocol.sedge_protocol`` works at the root, and gives a second set of classes."""
    folders = {folder.replace("/", ".") for folder in PACKAGES.values()}
    files = [p for name in ("tests", "tools", "examples", *PACKAGES.values())
             for p in found(ROOT / name, "*.py")]  # fmt: skip
    for path in files:
        for name in imports(path.read_text()):
            assert not any(name.startswith(f"{folder}.sedge_") for folder in folders), path


LOADED = """
import sys, {module}
heavy = "torch onnx onnxruntime executorch sklearn matplotlib PIL sedge_cloud sedge_emulate sedge_export"
print(*(name for name in heavy.split() if name in sys.modules))
"""


@pytest.mark.parametrize(
    "module",
    [
        "sedge_edge",
        "sedge_edge.agent",
        "sedge_edge.__main__",
        "sedge_edge.backend_onnx",
        "sedge_protocol",
    ],
)
def test_a_device_loads_nothing_heavy(module: str) -> None:
    words = [sys.executable, "-c", LOADED.format(module=module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("module", ["sedge_cloud", "sedge_cloud.__main__", "sedge_emulate"])
def test_a_coordinator_needs_no_torch(module: str) -> None:
    words = [sys.executable, "-c", LOADED.format(module=module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert not {"torch", "onnx", "onnxruntime", "executorch"} & set(done.stdout.split())


# Tests, sizes, names.


def test_of(module: str) -> list[str]:
    """The names that a module's test file may have."""
    package, _, name = module.partition(".")
    name = name.replace("__main__", "main").rpartition(".")[2]
    return [f"test_{name}.py", f"test_{package.removeprefix('sedge_')}_{name}.py"]


test_of.__test__ = False  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]


def test_every_module_has_a_test() -> None:
    used: set[str] = set()
    for module in MODULES:
        if module.endswith("__init__"):
            continue
        folder = ROOT / "tests" / module.partition(".")[0].removeprefix("sedge_")
        if any(path for name in test_of(module) for path in folder.rglob(name)):
            continue
        parent = f"{module.rpartition('.')[0]}."
        key = module if module in TESTED_ELSEWHERE else parent
        assert key in TESTED_ELSEWHERE, f"{module} has neither a test of its name nor a reason"
        used.add(key)
    assert used == TESTED_ELSEWHERE.keys(), "an exception that is none any more"
    for path, reason in TESTED_ELSEWHERE.values():
        assert (ROOT / path).exists(), path
        assert reason


def test_names_of_tests_are_unique() -> None:
    """Two files of one name are one module for mypy."""
    names = [path.name for path in found(ROOT / "tests", "test_*.py")]
    assert len(set(names)) == len(names)
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_files_are_short() -> None:
    for module, path in MODULES.items():
        lines = len(path.read_text().splitlines())
        assert lines <= LONG.get(module, MAX_LINES), f"{module}: {lines} lines"
    for module in LONG:
        lines = len(MODULES[module].read_text().splitlines())
        assert lines > MAX_LINES, f"{module} is an exception for nothing"


def test_nothing_is_left_to_do() -> None:
    words = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")))
    suffixes = ("*.py", "*.toml", "*.sh", "*.md", "*.service", "*.conf")
    for folder in (*PACKAGES.values(), "examples", "tests", "tools"):
        for pattern in suffixes:
            for path in (ROOT / folder).rglob(pattern):
                assert not words.search(path.read_text()), path
    assert words.search("# TO" + "DO: later")


def test_every_module_says_what_it_is() -> None:
    for module, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text())), module


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package: str) -> None:
    loaded = import_module(package)
    names: list[str] = loaded.__all__
    assert names == PUBLIC[package].split()
    assert all(hasattr(loaded, name) for name in names)


def test_packages_are_typed() -> None:
    for package, folder in PACKAGES.items():
        assert (ROOT / folder / package / "py.typed").exists()


def test_there_is_one_version() -> None:
    from sedge_cloud.devices.registry import VERSION as CLOUD
    from sedge_edge import VERSION as EDGE

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {CLOUD, EDGE, project["version"]} == {version("sedge-fl")}


def test_the_tree_of_errors_is_as_drawn() -> None:
    from sedge_protocol import errors

    drawn = re.findall(r"\b([A-Z]\w+(?:Error|Refused)|Refused)\b", errors.__doc__ or "")
    real = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert {name for name in drawn if name != "OSError"} == set(real)
    assert all(issubclass(getattr(errors, name), errors.SedgeError) for name in real)


# What a user runs.


def test_every_example_is_in_a_test() -> None:
    texts = "".join(
        path.read_text()
        for path in (
            ROOT / "tests" / "test_examples.py",
            *found(ROOT / "tests" / "emulate", "*.py"),
        )
    )
    for path in found(ROOT / "examples", "*"):
        assert path.name in texts, f"no test runs {path.name}"


def test_the_readmes_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", code_of((ROOT / "README.md").read_text())))
    assert {"demo", "test"} <= named <= targets
    ci = (ROOT / ".ci" / "run").read_text()
    assert set(re.findall(r"^make ([a-z-]+)$", ci, re.MULTILINE)) <= targets


def test_the_readmes_commands_and_files_exist() -> None:
    code = code_of((ROOT / "README.md").read_text())
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    named = set(re.findall(r"(?<![\w/-])(sedge-[a-z]+)(?= )", code))
    assert named
    assert named <= scripts.keys()
    for target in scripts.values():
        module, _, function = target.partition(":")
        assert callable(getattr(import_module(module), function))
    for path in re.findall(r"\b((?:examples|tools|cloud|edge)/[\w./-]+\.\w+)\b", code):
        assert (ROOT / path).exists(), path


def code_of(readme: str) -> str:
    """The text in a README's code blocks and between its backquotes."""
    blocks = re.findall(r"^```\w*$(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```\w*$.*?^```$", "", readme, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*blocks, *re.findall(r"`([^`]+)`", rest)])


def test_a_guard_that_finds_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "old.py").write_text("")
    for folder in (tmp_path, tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(AssertionError, match="the guard guards nothing"):
            found(folder, "*.py")
    assert len(MODULES) > 80
    assert set(PACKAGES) == {name.partition(".")[0] for name in MODULES}
