"""Runs programs of an arm64 Debian under qemu-user, emulating the processors of three Raspberry Pis.

By default, qemu 7.2 would present the host's /proc/cpuinfo, which crashes onnxruntime, and a processor with
features that no Raspberry Pi has. proot sets the root directory and replaces /proc/cpuinfo without
privileges. /sys is the host's, because ExecuTorch reads it.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.arm64 import packages
from tools.arm64.debian import debian
from tools.arm64.kept import FOLDER


class Cpu(NamedTuple):
    """A processor, as described by /proc/cpuinfo."""

    part: str
    variant: str
    revision: int
    features: str


_FIRST = "fp asimd evtstrm crc32 cpuid"
_ATOMICS = f"{_FIRST} aes pmull sha1 sha2 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
# The processors of Raspberry Pi Zero 2 W and 3, 4, 5.
CPUS = {
    "cortex-a53": Cpu("0xd03", "0x0", 4, _FIRST),
    "cortex-a72": Cpu("0xd08", "0x0", 3, _FIRST),
    "cortex-a76": Cpu("0xd0b", "0x4", 1, _ATOMICS),
}
_CPUINFO = """\
processor	: {number}
BogoMIPS	: 38.40
Features	: {cpu.features}
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: {cpu.variant}
CPU part	: {cpu.part}
CPU revision	: {cpu.revision}

"""
# The required packages. Each is keyed by a program whose presence shows that the package is installed.
TOOLS = {
    "debootstrap": "debootstrap",
    "qemu-aarch64-static": "qemu-user-static",
    "proot": "proot",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "mosquitto": "mosquitto",
    **({} if os.geteuid() == 0 else {"fakeroot": "fakeroot"}),
}
PYTHON = "/usr/bin/python3"


def missing(tools: Mapping[str, str]) -> str:
    """Return the command that installs whichever tools are missing, or "" if none are.

    ``tools`` maps each program to its package.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = [package for tool, package in tools.items() if not shutil.which(tool, path=path)]
    return f"apt-get install {' '.join(lacking)}" if lacking else ""


def cpuinfo(cpu: str) -> Path:
    """Write a file to present as /proc/cpuinfo, with four processors of one kind, and return its path."""
    path = FOLDER / f"cpuinfo.{cpu}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(_CPUINFO.format(number=n, cpu=CPUS[cpu]) for n in range(4)))
    return path


def command(
    cpu: str,
    words: Sequence[str],
    sites: Sequence[Path],
    folders: Sequence[Path],
    working: str = "/",
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that run ``words`` in the guest.

    ``sites`` are folders of Python packages; they and ``folders`` have the same paths inside as on the
    host. The agent may write only to these folders, because proot 5.1 passes faccessat2 to the host, which
    then checks access to its own files.
    """
    root = debian("root", ["python3", "ca-certificates"])
    binds = [
        "/proc",
        "/dev",
        "/sys",
        f"{cpuinfo(cpu)}:/proc/cpuinfo",
        *map(str, {*sites, *folders}),
    ]
    proot = ["proot", "-q", "qemu-aarch64-static", "-r", str(root), "-w", working]
    environment = {
        "PATH": os.environ["PATH"],
        "QEMU_CPU": cpu,
        "PYTHONPATH": os.pathsep.join(map(str, sites)),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return [*proot, *(word for bind in binds for word in ("-b", bind)), *words], environment


def main() -> None:
    """Build everything, and print where it is and the size of an installation."""
    if lacking := missing(TOOLS):
        raise SystemExit(f"please install what is missing: {lacking}")
    print(debian("root", ["python3", "ca-certificates"]))
    for backend in packages.EXTRAS:
        folder = packages.agent(backend)
        print(f"{folder}  {packages.size_mb(folder):.0f} MB")


if __name__ == "__main__":
    main()
