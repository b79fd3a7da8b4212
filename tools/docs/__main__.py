"""Builds the site from the pages, after writing the generated files (tools/spec).

    python -m tools.docs [--out FOLDER]

Every page keeps its path, so links that work in the repository also work on the site. The build fails if a
link is broken or a page is missing from the menu.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tools.spec.__main__ import write

ROOT = Path(__file__).parents[2]
FIRST = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>Sedge</title>\n'


def build(out: Path, builder: str = "html") -> int:
    """Build the site in a folder, or only check its links if ``builder`` is "dummy".

    Returns Sphinx's exit status.
    """
    options = ["-q", "-W", "--keep-going", "-b", builder, "-c", str(Path(__file__).parent)]
    # Sphinx's intermediate files go next to the site's folder, which then contains only the site.
    kept = ["-d", str(out.with_name(f"{out.name}.doctrees"))]
    command = [sys.executable, "-m", "sphinx", *options, *kept, str(ROOT), str(out)]
    status = subprocess.run(command, check=False).returncode
    if status == 0 and builder == "html":
        (out / "index.html").write_text(FIRST)
    return status


def main() -> int:
    """Write the generated files, and build the site. Returns Sphinx's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "site")
    arguments = parser.parse_args()
    write()
    return build(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
