"""Builds the site from the pages, after writing the generated files (tools/spec).

    python -m tools.docs [--out FOLDER]

Every page keeps its path, so a link that works in the repository works in the site, too. The build fails at
a broken link or a page that is missing from the menu.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tools.spec.__main__ import write

ROOT = Path(__file__).parents[2]
FIRST = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html"><title>Sedge</title>\n'


def build(out: Path, builder: str = "html") -> int:
    """Build the site in a folder, or with ``dummy`` only check its links. Returns Sphinx's exit status."""
    options = ["-q", "-W", "--keep-going", "-b", builder, "-c", str(Path(__file__).parent)]
    # Sphinx's intermediate files go next to the site's folder, which then contains only the site.
    kept = ["-d", str(out.with_name(f"{out.name}.doctrees"))]
    command = [sys.executable, "-m", "sphinx", *options, *kept, str(ROOT), str(out)]
    status = subprocess.run(command, check=False).returncode
    if status == 0 and builder == "html":
        (out / "index.html").write_text(FIRST)
    return status


def main() -> int:
    """Write the generated files, and build the site."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "site")
    arguments = parser.parse_args()
    write()
    return build(arguments.out)


if __name__ == "__main__":
    sys.exit(main())
