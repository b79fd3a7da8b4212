"""Makes a pack: three archives, scripts that unpack them, and checksums.

It is made completely or not at all.
"""

import hashlib
import lzma
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from tools import wheels
from tools.pack.unpack import ARCHIVES, CONTENT, SUFFIX

from sedge_emulate.data.datasets import FILES, find_fashion_mnist, read_idx

MACHINE = "x86_64"
# The oldest version that torch's own wheels accept.
GLIBC = 28
TRAIN_IMAGES = 60_000
# What the emulator, the GPU tests and the benchmark import; the target machine has torch and its CUDA
# libraries.
REQUIREMENTS = (
    "backports.zstd", "jinja2", "msgspec", "numpy", "onnx", "onnxruntime", "paho-mqtt", "pytest", "rich",
)  # fmt: skip
# Parts of these packages that are never imported: two fifths of their compressed bytes.
UNUSED = (
    "bin",  # scripts that begin with a path on this machine
    "numpy/**/tests",
    "onnx/backend/test",
    "onnxruntime/transformers",
    "onnxruntime/capi/libonnxruntime.so.*",  # a second copy of the runtime, for C programs
)
HERE = Path(__file__).parent
_BLOCK = 4096
# A larger dictionary and xz's filter for machine code make the packages a twelfth smaller.
_TEXT = ({"id": lzma.FILTER_LZMA2, "preset": 6},)
_CODE = ({"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9})


class PackError(Exception):
    """Raised if a pack cannot be made as requested. The message says what was found and expected."""


@dataclass(frozen=True)
class Wanted:
    """A pack to make from checkout ``root`` for CPython ``python`` ("3.12"), of at most ``limit`` bytes."""

    root: Path
    python: str
    train_images: int
    limit: int
    requirements: tuple[str, ...] = REQUIREMENTS

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.\d+", self.python):
            raise PackError(f"--python: {self.python!r}, expected a version such as 3.12")
        if not 0 < self.train_images <= TRAIN_IMAGES:
            raise PackError(f"--train-images: {self.train_images}, expected 1 to {TRAIN_IMAGES:,}")


class Content(msgspec.Struct, frozen=True):
    """The pack's contents and their unpacked sizes in bytes, written as content.json."""

    python: str
    commit: str
    train_images: int
    packages: list[str]
    unpacked_bytes: int


def pack(wanted: Wanted, out: Path) -> Content:
    """Make the pack in the folder ``out``, replacing a pack that is already there.

    Raises ``PackError``, ``NoWheel``, ``DataError`` and ``OSError``, and then leaves ``out`` unchanged.
    """
    if out.exists() and any(out.iterdir()) and not (out / CONTENT).exists():
        raise PackError(
            f"{out}: contains something else, expected no folder, an empty one or a pack"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f"{out.name}-") as name:
        stage, made = Path(name) / "stage", Path(name) / "pack"
        made.mkdir()
        copy_source(wanted.root, stage / "source")
        copy_packages(wanted, stage / "packages")
        copy_data(wanted.train_images, stage / "data")
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(_archive, stage / part, made) for part in ARCHIVES]:
                done.result()
        content = Content(
            wanted.python,
            _git(wanted.root, "describe", "--always", "--dirty").strip(),
            wanted.train_images,
            sorted(f"{d.name}=={d.version}" for d in distributions(path=[str(stage / "packages")])),
            _bytes(stage) + _bytes(stage / "data"),  # archives are compressed there, one by one
        )
        (made / CONTENT).write_bytes(msgspec.json.format(msgspec.json.encode(content)))
        shutil.copy(HERE / "unpack.py", made)
        _write_run(wanted.python, made / "run")
        _write_sums(made)
        _require_small(made, stage / "packages", wanted.limit)
        made.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        made.rename(out)
    return content


def sizes(folder: Path) -> list[tuple[str, int]]:
    """List the files and folders directly in a folder with their total bytes, largest first."""
    found = [(path.name, _bytes(path, 1)) for path in folder.iterdir()]
    return sorted(found, key=lambda entry: (-entry[1], entry[0]))


def copy_source(root: Path, folder: Path) -> None:
    """Copy the files that git tracks, in their current state, except those that have been deleted."""
    for name in _git(root, "ls-files", "-z").split("\0"):
        if name and (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)


def copy_packages(wanted: Wanted, folder: Path) -> None:
    """Unpack the wheels, except for unused parts, and copy the metadata that holds Sedge's version."""
    wheels.install(folder, wanted.requirements, wanted.python, MACHINE, GLIBC)
    for pattern in UNUSED:
        for path in list(folder.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    ours = distribution("sedge-fl")
    metadata = folder / f"sedge_fl-{ours.version}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(ours.read_text("METADATA") or "")


def copy_data(train_images: int, folder: Path) -> None:
    """Copy Fashion-MNIST's four files, uncompressed, with the first ``train_images`` training images."""
    source = find_fashion_mnist()
    if source is None:
        raise PackError("Fashion-MNIST: not found; install Debian's dataset-fashion-mnist")
    folder.mkdir()
    for names, count in zip(FILES, (train_images, None), strict=True):
        for name, axes in zip(names, (3, 1), strict=True):
            array = read_idx(source / name, axes)[:count]
            (folder / name.removesuffix(".gz")).write_bytes(idx(array))


def idx(array: NDArray[np.uint8]) -> bytes:
    """Encode an array as an IDX file of unsigned bytes, the inverse of ``read_idx``."""
    return struct.pack(f">2x2B{array.ndim}I", 8, array.ndim, *array.shape) + array.tobytes()


def _archive(folder: Path, out: Path) -> None:
    """Pack ``folder`` reproducibly as ``out``/NAME.tar.xz."""
    filters = _CODE if folder.name == "packages" else _TEXT
    with (
        lzma.open(out / (folder.name + SUFFIX), "wb", filters=filters) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _write_run(python: str, path: Path) -> None:
    text = (HERE / "run").read_text().replace("@PYTHON@", python).replace("@MACHINE@", MACHINE)
    path.write_text(text)
    path.chmod(0o755)


def _write_sums(folder: Path) -> None:
    """Write the checksums of everything that ``run`` reads, in the format of ``sha256sum``.

    ``run`` is left out, because it cannot check itself while it is running.
    """
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != "run"
    ]
    (folder / "SHA256SUMS").write_text("".join(sums))


def _require_small(folder: Path, packages: Path, limit: int) -> None:
    total = sum(size for _, size in sizes(folder))
    if total > limit:
        biggest = ", ".join(_named(entry) for entry in sizes(folder)[:3])
        inside = ", ".join(_named(entry) for entry in sizes(packages)[:3])
        raise PackError(
            f"{total / 1e6:.1f} MB, expected at most {limit / 1e6:g} MB; the largest: {biggest}; "
            f"among the packages, unpacked: {inside}; use fewer --train-images"
        )


def _named(entry: tuple[str, int]) -> str:
    return f"{entry[0]} {entry[1] / 1e6:.1f} MB"


def _bytes(path: Path, block: int = _BLOCK) -> int:
    """Return the size of a file or folder on a disk with blocks of this size."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(-(-file.stat().st_size // block) * block for file in files if file.is_file())


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackError(f"{root}: git {words[0]}: {done.stderr.strip()}; expected a checkout")
    return done.stdout
