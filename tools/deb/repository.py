"""Writes the index that makes a folder of .deb files a repository for apt."""

import gzip
import lzma
import shutil
import subprocess
import sys
from pathlib import Path

_FROM = {"apt-ftparchive": "apt-utils", "dpkg-deb": "dpkg", "gpg": "gpg"}
_INDEX = ("Packages", "Packages.gz", "Packages.xz", "Release", "InRelease", "sedge.gpg")


def lacks(key: str | None) -> str:
    """Return one line that says why ``publish`` would fail, or "".

    Publishing fails if a program is missing, or if gpg has no secret key ``key``.
    """
    lacking = [_FROM[name] for name in _FROM if (key or name != "gpg") and not shutil.which(name)]
    if lacking:
        return f"apt-get install {' '.join(lacking)}"
    if not key:
        return ""
    found = subprocess.run(_gpg("--list-secret-keys", key), capture_output=True, check=False)
    return f"--sign-with {key}: gpg has no such secret key" if found.returncode else ""


def publish(folder: Path, key: str | None) -> None:
    """Write the index of all packages in ``folder``, of every version and architecture.

    If ``key`` names a secret key in gpg, the signed InRelease is written too, and the public key as
    sedge.gpg.
    """
    # An older signature would not match the new index.
    for name in _INDEX:
        (folder / name).unlink(missing_ok=True)
    packages = _ftparchive(folder, "packages")
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages))
    (folder / "Packages.xz").write_bytes(lzma.compress(packages))
    facts = {"Origin": "Sedge", "Label": "Sedge", "Codename": folder.name}
    options = [f"-oAPT::FTPArchive::Release::{name}={fact}" for name, fact in facts.items()]
    (folder / "Release").write_bytes(_ftparchive(folder, *options, "release"))
    if key:
        _run(folder, _gpg("--local-user", key, "--output", "InRelease", "--clearsign", "Release"))
        _run(folder, _gpg("--output", "sedge.gpg", "--export", key))


def _ftparchive(folder: Path, *words: str) -> bytes:
    return _run(folder, ["apt-ftparchive", *words, "."])


def _gpg(*words: str) -> list[str]:
    return ["gpg", "--batch", "--quiet", *words]


def _run(folder: Path, words: list[str]) -> bytes:
    done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, check=False)
    if done.returncode:  # gpg has said why on stderr
        sys.exit(f"{words[0]} failed in {folder}")
    return done.stdout
