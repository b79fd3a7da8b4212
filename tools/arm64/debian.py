"""Builds an arm64 Debian: debootstrap downloads and verifies the packages, then they are unpacked.

No arm64 program runs in the process, so the packages' maintainer scripts do not run either: there are no
accounts except the ones created below, no initramfs and no ld.so.cache. Neither Python nor systemd, as the
first process, needs them. Python's standard library is compiled to bytecode here, as its package's script
would have done; otherwise every process would compile the modules that it imports.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.arm64.kept import kept

RELEASE = "bookworm"
# debootstrap must run as root, and the files must appear to belong to root; fakeroot simulates both.
_AS_ROOT = () if os.geteuid() == 0 else ("fakeroot",)
_UNPACK = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink --no-same-owner -C "$2"'


def debian(name: str, packages: Sequence[str]) -> Path:
    """Return the root folder of a Debian with these packages and their dependencies."""

    def make(folder: Path) -> None:
        words = ["debootstrap", "--arch=arm64", "--foreign", "--variant=minbase"]
        words += [f"--include={','.join(packages)}", RELEASE, str(folder)]
        subprocess.run([*_AS_ROOT, *words], check=True, stdout=subprocess.DEVNULL)
        archives = folder / "var/cache/apt/archives"
        for package in sorted(archives.glob("*.deb")):
            unpack = ["bash", "-eo", "pipefail", "-c", _UNPACK, "unpack", str(package), str(folder)]
            subprocess.run(unpack, check=True)
        shutil.rmtree(archives)
        shutil.rmtree(folder / "debootstrap")
        _complete(folder)

    words = (RELEASE, *packages)
    return kept(name, [Path(__file__).read_bytes(), *(word.encode() for word in words)], make)


def _complete(folder: Path) -> None:
    """Create the files that everything needs and that the packages' scripts would have created."""
    for name in ("dev", "proc"):  # debootstrap leaves device files or links here
        place = folder / name
        if place.is_symlink():
            place.unlink()
        else:
            shutil.rmtree(place)
        place.mkdir()
    etc = folder / "etc"
    for name in ("passwd", "group"):
        shutil.copy(folder / f"usr/share/base-passwd/{name}.master", etc / name)
    shutil.copy(folder / "usr/share/libc-bin/nsswitch.conf", etc / "nsswitch.conf")
    (etc / "hosts").write_text("127.0.0.1 localhost\n")
    # Bytecode does not depend on the processor, only on Python's version. If this Python's version is not
    # Debian's, the bytecode is simply ignored.
    compiled = [sys.executable, "-m", "compileall", "-q", "-s", str(folder), "-p", "/"]
    subprocess.run([*compiled, *map(str, folder.glob("usr/lib/python3*"))], check=True)
