"""The rules of this repository that no type checker knows: who imports what, and what pages promise.

Each rule is a function of the sources, and each is also shown to fail on a source that breaks it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tools.bench.__main__ import commands

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "sedge_protocol": "protocol",
    "sedge_start": "protocol",
    "sedge_cloud": "cloud",
    "sedge_edge": "edge",
    "sedge_conformance": "tools/conformance",
    "sedge_emulate": "tools/emulate",
    "sedge_export": "tools/export",
}
# Imports run one way: protocol <- edge, protocol <- cloud <- conformance, all <- emulate; export uses
# protocol and edge.
MAY_IMPORT: dict[str, set[str]] = {
    "sedge_protocol": set(),
    "sedge_start": set(),
    "sedge_cloud": {"sedge_protocol"},
    "sedge_edge": {"sedge_protocol"},
    "sedge_conformance": {"sedge_protocol", "sedge_cloud"},
    "sedge_export": {"sedge_protocol", "sedge_edge"},
    "sedge_emulate": {"sedge_protocol", "sedge_cloud", "sedge_edge", "sedge_export"},
}
# What a module may not reach, itself or through whatever it imports: other folders, and the outside.
CLOUD_CORE = (
    "sedge_cloud.store sedge_cloud.rounds sedge_cloud.ingest sedge_cloud.admin sedge_protocol.host"
)
ABOVE = "sedge_cloud.outlets sedge_cloud.admin sedge_cloud.service"
DEVICE_SHELL = "sedge_edge.backends sedge_edge.runtime sedge_protocol.host outside"
STAGES = (
    "sedge_export.inspection sedge_export.tracing sedge_export.lowering sedge_export.verification "
    "sedge_export.writing"
)
EMULATION = "sedge_emulate.virtual sedge_emulate.broker sedge_emulate.run"
FORBIDDEN: dict[str, str] = {
    "sedge_protocol.codec": "sedge_protocol.wire sedge_protocol.host outside",
    "sedge_protocol.wire": "sedge_protocol.host outside",
    "sedge_cloud.algorithms": f"{CLOUD_CORE} sedge_cloud.strategies outside",
    "sedge_cloud.strategies": f"{CLOUD_CORE} outside",
    "sedge_cloud.store": "sedge_cloud.rounds sedge_cloud.ingest sedge_cloud.admin",
    "sedge_cloud.processes": "sedge_cloud.rounds sedge_cloud.ingest sedge_cloud.admin",
    "sedge_cloud.ingest": "sedge_cloud.rounds sedge_cloud.admin",
    "sedge_cloud.rounds": "sedge_cloud.ingest sedge_cloud.facts sedge_cloud.coordinator "
    "sedge_cloud.recorder sedge_cloud.admin sedge_cloud.service",
    "sedge_cloud.facts": f"{ABOVE} sedge_cloud.strategies sedge_cloud.rounds sedge_cloud.ingest",
    "sedge_cloud.coordinator": "sedge_cloud.admin sedge_cloud.service",
    "sedge_edge.jobs": "sedge_edge.rounds sedge_edge.training outside",
    "sedge_edge.training": f"sedge_edge.rounds {DEVICE_SHELL}",
    "sedge_edge.rounds": f"sedge_edge.training {DEVICE_SHELL}",
    "sedge_edge.agent": DEVICE_SHELL,
    "sedge_export.subject": f"{STAGES} sedge_export.widths sedge_export.recurrent",
    "sedge_export.recurrent": f"{STAGES} sedge_export.widths",
    "sedge_export.lowering": "sedge_export.tracing sedge_export.inspection sedge_export.verification",
    "sedge_export.tracing": "sedge_export.inspection sedge_export.verification sedge_export.widths",
    "sedge_export.inspection": "sedge_export.verification sedge_export.writing",
    "sedge_export.verification": "sedge_export.widths sedge_export.writing",
    "sedge_export.writing": "sedge_export.exporter sedge_export.command_line sedge_export.apps",
    "sedge_export.widths": "sedge_export.verification sedge_export.writing",
    "sedge_export.exporter": "sedge_export.command_line sedge_export.apps",
    "sedge_emulate.data": EMULATION,
    "sedge_emulate.training": f"{EMULATION} sedge_emulate.data sedge_cloud",
    "sedge_emulate.workers": EMULATION,
    "sedge_emulate.virtual": "sedge_emulate.broker sedge_emulate.run",
    "sedge_emulate.broker": "sedge_emulate.virtual sedge_emulate.run",
}
# The same in Java: what each package imports of the others. Everybody may know what lies above them all.
JAVA = "edge/android/core/src/main/java/org/sedge/edge"
JAVA_MAY_IMPORT = {
    "codec": "",
    "wire": "codec",
    "jobs": "codec wire",
    "training": "codec jobs wire",
    "rounds": "jobs wire",
    "backends": "host jobs training wire",
    "host": "jobs rounds wire",
}
# The outside: what a result could depend on besides the arguments, by module and by call.
OUTSIDE = {
    "asyncio", "datetime", "multiprocessing", "os", "paho", "random", "secrets", "select",
    "selectors", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
FILE_CALLS = {
    "glob", "iterdir", "mkdir", "read_bytes", "read_text", "rename", "rglob", "rmdir", "stat", "touch",
    "unlink", "write_bytes", "write_text",
}  # fmt: skip
# Who may use the outside all the same, and for what.
FILES_OF_ITS_OWN = {"sedge_protocol.wire.bundle": "a bundle is a folder before it is sent"}
MAX_LINES = 400
LONGEST_CHAIN = 18  # of the cloud's imports
# Longer than that, and why they are not two files.
LONG: dict[str, int] = {
    "sedge_protocol.host.mqtt": 480  # the one file that owns paho
}
PUBLIC = {
    "sedge_protocol": "VERSION Codec Compression Layout Metrics Role SedgeError SparseVector Tensor Theta "
    "Training ValueCoding decode encode top_k",
    "sedge_cloud": "Assignment Blend ClientModel ConfigError Context DeviceScoring FedAvg Layout OwnModel "
    "PatchChoice RunConfig SparseVector State Store Strategy StrategyError Theta Training Update "
    "UpdateSelection Work average_change open_folder start_run",
    "sedge_edge": "VERSION Agent Examples Identity Model OpenBundles PersonalModel StartJob Trainer "
    "local_context open_agent personal_model predict_file run_job split",
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
        ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
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
    return tops(imports(source)) & (set(PACKAGES) - MAY_IMPORT[package] - {package})


@cache
def touches(source: str) -> set[str]:
    """What of the outside a source uses itself: modules, files."""
    used = tops(imports(source)) & OUTSIDE
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                used.add("open")
            case ast.Call(func=ast.Attribute(attr=name)) if name in FILE_CALLS:
                used.add(name)
            case _:
                pass
    return used


def inside(module: str, folder: str) -> bool:
    """Whether a module is this one, or one of this package."""
    return module == folder or module.startswith(f"{folder}.")


def reached(module: str, sources: Mapping[str, str]) -> set[str]:
    """The modules that one needs, itself among them, through every import anywhere in them.

    Not through a whole deliverable's names, which stand for all of it.
    """
    seen: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += [
                other
                for other in imports(sources[name])
                if other in sources and other not in PUBLIC
            ]
    return seen


def forbidden(module: str, wanted: str, sources: Mapping[str, str]) -> set[str]:
    """What a module reaches of the folders, and of the "outside", that it must not."""
    needed = reached(module, sources)
    folders = {name for name in needed for folder in wanted.split() if inside(name, folder)}
    if "outside" not in wanted.split():
        return folders
    return folders | {
        f"{name}: {use}"
        for name in needed - FILES_OF_ITS_OWN.keys()
        for use in touches(sources[name])
    }


# Imports.


def test_imports_run_one_way() -> None:
    for module, path in MODULES.items():
        assert not wrong_direction(module.partition(".")[0], path.read_text()), module


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_a_folder_reaches_only_what_it_may(folder: str) -> None:
    sources = {name: path.read_text() for name, path in MODULES.items()}
    members = [name for name in sources if inside(name, folder)]
    assert members, folder
    for module in members:
        assert not forbidden(module, FORBIDDEN[folder], sources), module


def test_chains_of_imports_are_short() -> None:
    """Whoever reads the cloud from its command on goes down so many modules, and no more."""
    sources = {n: path.read_text() for n, path in MODULES.items() if inside(n, "sedge_cloud")}

    @cache
    def depth(module: str) -> int:
        below = imports(sources[module]) & sources.keys() - {module}
        return 1 + max(map(depth, below), default=0)

    assert max(map(depth, sources)) <= LONGEST_CHAIN


def test_who_has_files_of_its_own_uses_them() -> None:
    for module in FILES_OF_ITS_OWN:
        assert touches(MODULES[module].read_text()), module


def test_one_file_owns_each_library() -> None:
    owners = {
        "paho": "sedge_protocol.host.mqtt",
        "fcntl": "sedge_protocol.host.posix",  # Windows lacks it
        "sqlite3": "sedge_cloud.store.sqlite",
        "onnxruntime": "sedge_protocol.host.onnx_runtime",
    }
    for library, owner in owners.items():
        users = [m for m, path in MODULES.items() if library in tops(imports(path.read_text()))]
        assert users == [owner]


def java_imports(source: str) -> set[str]:
    """The packages of the core in Java that a source imports from."""
    return set(
        re.findall(r"^import (?:static )?org\.sedge\.edge\.([a-z]+)\.", source, re.MULTILINE)
    )


def test_packages_in_java_import_one_way() -> None:
    packages = {path.name for path in (ROOT / JAVA).iterdir() if path.is_dir()}
    assert packages == JAVA_MAY_IMPORT.keys()
    for name, allowed in JAVA_MAY_IMPORT.items():
        for path in found(ROOT / JAVA / name, "*.java"):
            assert java_imports(path.read_text()) <= {name, *allowed.split()}, path


def lambdas(source: str) -> list[str]:
    """The arrows and double colons in a source in Java, outside of its comments and texts."""
    other = r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'"""
    return re.findall(r"->|::", re.sub(other, "", source, flags=re.DOTALL))


def test_what_a_phone_runs_has_no_lambdas() -> None:
    """Android has nothing to make them of, and Debian's dexer refuses them."""
    for part in ("core", "library", "app"):
        for path in found(ROOT / "edge/android" / part / "src/main", "*.java"):
            assert not lambdas(path.read_text()), path
    assert lambdas('/* -> */ char c = \'"\'; f(x -> "a://b"); // ::\ng(this::h);') == ["->", "::"]


def test_the_guard_reads_java() -> None:
    source = (
        "package a;\nimport org.sedge.edge.Rows;\nimport static org.sedge.edge.rounds.State.RUNS;\n"
    )
    assert java_imports(f"{source}import org.sedge.edge.wire.Schema.Field;") == {"rounds", "wire"}


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
    ("source", "found"),
    [
        ("from a.near import x", set[str]()),
        ("def f():\n    from a.far import x", {"a.far", "a.far: open"}),
        ("import a.near", set[str]()),
        ("from a import far", {"a.far", "a.far: open"}),
        ("import time", {"a.core: time"}),
        ("path.write_text('')", {"a.core: write_text"}),
        ("from a.bridge import x", {"a.far", "a.far: open"}),
    ],
)
def test_the_guard_sees_what_is_reached(source: str, found: set[str]) -> None:
    sources = {
        "a.core": source,
        "a.near": "import math",
        "a.bridge": "import a.far",
        "a.far": "open('secret')",
    }
    assert forbidden("a.core", "a.far outside", sources) == found


def test_no_package_is_imported_by_its_folder() -> None:
    """``import protocol.sedge_protocol`` works at the root, and gives a second set of classes."""
    folders = {folder.replace("/", ".") for folder in PACKAGES.values()}
    files = [p for name in ("tests", "tools", "examples", *PACKAGES.values())
             for p in found(ROOT / name, "*.py")]  # fmt: skip
    wrong = re.compile(rf"^ *(?:from|import) (?:{'|'.join(map(re.escape, folders))})\.sedge_", re.M)
    for path in files:
        assert not wrong.search(path.read_text()), path
    assert wrong.search("import protocol.sedge_protocol")


def test_only_tests_import_tests() -> None:
    for name in ("tools", "examples", *PACKAGES.values()):
        for path in found(ROOT / name, "*.py"):
            assert "tests" not in tops(imports(path.read_text())), path


BACKENDS = "sedge_edge.backends.onnx_runtime, sedge_edge.backends.function"
AGENT = f"sedge_protocol, sedge_edge.__main__, {BACKENDS}"


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (AGENT, "torch onnx onnxruntime executorch sklearn jinja2 PIL sedge_cloud sedge_emulate"),
        ("sedge_cloud.__main__, sedge_emulate", "torch onnx onnxruntime executorch"),
    ],
    ids=["agent", "coordinator"],
)
def test_who_loads_nothing_heavy(modules: str, forbidden: str) -> None:
    words = [sys.executable, "-c", f"import sys, {modules}; print(*sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "sedge_protocol" in loaded and not loaded & set(forbidden.split())


# Sizes and names.


def test_every_fleet_is_played() -> None:
    """``make test-fleet`` names its folders: others have no test that is marked as one."""
    named = re.search(r"^FLEETS = ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert named is not None
    folders = tuple(named[1].replace("\\", "").split())
    for path in found(ROOT / "tests", "test_*.py"):
        if path != Path(__file__) and "mark.fleet" in path.read_text():
            assert str(path.relative_to(ROOT)).startswith(folders), path


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


def test_the_map_of_a_package_names_its_modules() -> None:
    """A line of its docstring that begins with a name and a gap is a module's."""
    maps = 0
    for module, path in MODULES.items():
        said = ast.get_docstring(ast.parse(path.read_text())) if path.stem == "__init__" else None
        named = re.findall(r"^(\w+) {2,}\S", said or "", re.MULTILINE)
        maps += bool(named)
        for name in named:
            assert f"{module}.{name}" in MODULES, f"{module}: {name}"
    assert maps > 3


def test_dotted_names_in_prose_exist() -> None:
    """``sedge_edge.training.job.run_job``: a module, or what it defines."""
    dotted, seen = re.compile(r"``(sedge_\w+(?:\.\w+)+)``"), 0
    for path in (*MODULES.values(), *found(ROOT / "tests", "*.py"), *found(ROOT / "docs", "*.md")):
        for name in dotted.findall(path.read_text()):
            module, _, last = name.rpartition(".")
            source = MODULES.get(module)
            defined = source and re.search(rf"\b{last}\b", source.read_text())
            assert name in MODULES or defined, (path, name)
            seen += 1
    assert seen > 3


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package: str) -> None:
    loaded = import_module(package)
    names: list[str] = loaded.__all__
    assert names == PUBLIC[package].split()
    assert all(hasattr(loaded, name) for name in names)


def test_packages_are_typed() -> None:
    for package, folder in PACKAGES.items():
        assert (ROOT / folder / package / "py.typed").exists()


# Where the version is written, apart from the names of packages.
VERSIONED = {
    "pyproject.toml": r'^version = "(.+)"',
    "protocol/sedge_protocol/__init__.py": r'^VERSION = "(.+)"',
    "edge/android/core/src/main/java/org/sedge/edge/Agent.java": r'String VERSION = "(.+)"',
    "edge/android/core/pom.xml": r"^  <version>(.+)</version>",
    "edge/android/build.gradle": r'^    version = "(.+)"',
    "edge/android/app/build.gradle": r'versionName = "(.+)"',
    "CITATION.cff": r"^version: (.+)",
}
NAMED = re.compile(r"\bsedge[-_](?:fl-|(?:cloud|edge)[_:])(\d[\d.]*\d)")


def test_the_version_is_that_of_the_newest_changes_everywhere() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest
    for name, pattern in VERSIONED.items():
        assert re.findall(pattern, (ROOT / name).read_text(), re.M) == [newest[1]], name
    pages = [*found(ROOT / "docs", "*.md"), *found(ROOT / "examples", "*.yaml")]
    assert {version for page in pages for version in NAMED.findall(page.read_text())} == {newest[1]}
    assert f"**Status:** {newest[1].rpartition('.')[0]}, " in (ROOT / "README.md").read_text()


def test_the_tree_of_errors_is_as_drawn() -> None:
    from sedge_protocol import errors

    names = r"\b([A-Z]\w+Error|NotInstalled|Unencodable|UpdateRejected)\b"
    drawn = re.findall(names, errors.__doc__ or "")
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    real = [name for name, kind in kinds.items() if issubclass(kind, Exception)]
    assert {name for name in drawn if name != "OSError"} == set(real)
    assert all(issubclass(getattr(errors, name), errors.SedgeError) for name in real)


# What a user runs.


def test_every_example_is_in_a_test() -> None:
    paths = found(ROOT / "tests", "test_*examples.py")
    for folder in ("android", "emulate", "system"):
        paths += found(ROOT / "tests" / folder, "*.py")
    texts = "".join(path.read_text() for path in paths)
    for path in found(ROOT / "examples", "*"):
        assert path.name in texts, f"no test runs {path.name}"


def test_the_make_targets_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    pages = (ROOT / "README.md", ROOT / "docs" / "developing.md")
    code = "\n".join(code_of(page.read_text()) for page in pages)
    assert {"demo", "test", "check"} <= set(re.findall(r"\bmake ([a-z0-9-]+)\b", code)) <= targets
    ci = (ROOT / ".ci" / "run").read_text()
    assert set(re.findall(r"^make ([a-z0-9-]+)$", ci, re.MULTILINE)) <= targets


def test_the_benchmarks_that_anything_names_exist() -> None:
    pages = ("tools/**/*.py", "tools/**/*.md", "tests/**/*.py", "docs/*.md", "examples/*", "*.md")
    paths = [path for pattern in pages for path in ROOT.glob(pattern) if path.is_file()]
    known, asked = commands(), r"(?:python -m |`)tools\.bench\s+(?:--keep\s+)?([a-z]\w*)"
    for path in (ROOT / "Makefile", *MODULES.values(), *paths):
        text = path.read_text()
        unknown = set(re.findall(asked, text)) - known.keys()
        assert not unknown, f"{path}: {unknown}"
        for name in re.findall(r"\btools/bench/[\w/]+\.(?:py|toml)\b", text):
            assert (ROOT / name).exists(), f"{path}: {name}"
    assert re.findall(asked, (ROOT / "Makefile").read_text()).count("pages") == 3


def test_every_folder_is_on_the_map() -> None:
    """Each package's folders by themselves; and no folder that is gone."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "developing.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w./]+)`", row) if "/" in name}
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
    for package, folder in PACKAGES.items():
        for path in found(ROOT / folder / package, "__init__.py"):
            where = path.parent.relative_to(ROOT).as_posix()
            assert path.parent.name == package or where in named, where


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
