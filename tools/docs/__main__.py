"""Build the site from the pages, after writing what is made from the code (tools/spec).

    python -m tools.docs [--out FOLDER]

The site holds every page of the repository at its own path, so that a link that works in the repository
works in the site. A link that leads nowhere ends the build. MkDocs makes HTML of it (the extra "docs").
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from tools.spec.__main__ import write

ROOT = Path(__file__).parents[2]
# The pages' folders, and what else their links lead to.
CONTENT = (
    "README.md",
    "CHANGELOG.md",
    "docs",
    "protocol",
    "examples",
    "tools/bench",
    "cloud",
    "edge",
)
NAV = {
    "Start": ("README.md",),
    "Guides": ("docs",),
    "On the wire": ("protocol/WIRE.md", "protocol/spec"),
    "Measured": ("tools/bench/RESULTS.md", "tools/bench/REPRODUCED.md"),
    "Changes": ("CHANGELOG.md",),
}


def navigation(root: Path) -> list[dict[str, list[str]]]:
    """The site's menu: each part's pages, those of a folder by name."""
    return [
        {part: [page for entry in entries for page in _pages(root, entry)]}
        for part, entries in NAV.items()
    ]


def _pages(root: Path, entry: str) -> list[str]:
    path = root / entry
    found = sorted(path.glob("*.md")) if path.is_dir() else [path]
    return [page.relative_to(root).as_posix() for page in found]


def build(out: Path) -> int:
    """Build the site in a folder; the exit status of MkDocs."""
    with TemporaryDirectory() as temporary:
        pages, config = Path(temporary, "pages"), Path(temporary, "mkdocs.yml")
        for entry in CONTENT:
            _copy(ROOT / entry, pages / entry)
        settings = {
            "site_name": "Sedge",
            "docs_dir": str(pages),
            "site_dir": str(out.resolve()),
            "use_directory_urls": False,
            "theme": {"name": "mkdocs", "locale": "en"},
            "plugins": ["search"],
            "markdown_extensions": ["tables", "toc"],
            "nav": navigation(ROOT),
            "validation": {"links": {"not_found": "warn"}},
        }
        config.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(config)]
        return subprocess.run(command, check=False).returncode


def _copy(source: Path, target: Path) -> None:
    """A file, or the pages and examples of a folder."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        return
    for suffix in ("*.md", "*.toml", "*.py", "*.conf", "*.java", "Containerfile"):
        for file in source.rglob(suffix):
            _copy(file, target / file.relative_to(source))


def main() -> int:
    """Write what is made, and build."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "site")
    arguments = parser.parse_args()
    write()
    return build(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
