"""Builds the wheel sedge-executorch: the ExecuTorch runtime's own libraries, and our C interface to them.

    python edge/native/build.py [--out dist] [--machine x86_64 --machine aarch64]

The headers and libraries come from the executorch wheel for the machine. It is taken from this environment
if installed, otherwise downloaded by pip. A device then needs no compiler, no torch and none of
executorch's own dependencies. Without --machine, a wheel is built for each machine whose compiler is
installed. The compiler for a Raspberry Pi is Debian's g++-aarch64-linux-gnu.
"""

import argparse
import base64
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

VERSION = "1.5.1"  # The version of executorch, and of sedge-executorch too.
PACKAGE = "sedge_executorch"
HERE = Path(__file__).parent
SOURCE = HERE / f"{PACKAGE}.cpp"
LIBRARIES = (
    "libexecutorch.so",
    "libexecutorch_kernels_optimized.so",
    "libexecutorch_threadpool.so",
    "libexecutorch_backend_xnnpack.so",
)
# Taken from executorch's CMake configuration. Without these flags, its classes would have a different
# memory layout.
DEFINITIONS = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED")
INCLUDES = ("include", "include/executorch/runtime/core/portable_type/c10")
COMPILERS = {"x86_64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}
LICENSE = "licenses/LICENSE"

METADATA = f"""\
Metadata-Version: 2.1
Name: sedge-executorch
Version: {VERSION}
Summary: The ExecuTorch runtime for sedge-edge, without torch
License: Apache-2.0 AND BSD-3-Clause
License-File: LICENSE
License-File: LICENSE.executorch
License-File: NOTICE
Requires-Python: >=3.11
"""
INIT = f'"""The libraries of ExecuTorch {VERSION} and a C interface to them; no Python code."""\n'


def unpacked(machine: str, folder: Path) -> tuple[Path, str]:
    """Unpack the executorch package for a machine into ``folder``.

    Returns the folders of headers and libraries, and the license.
    """
    if machine == platform.machine():
        try:
            installed = distribution("executorch")
        except PackageNotFoundError:
            pass
        else:
            if installed.version == VERSION:
                text = installed.read_text(LICENSE) or ""
                return Path(str(installed.locate_file("executorch"))), text
    words = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    words += ["--platform", f"manylinux_2_28_{machine}", "--python-version", "3.11"]
    words += ["--dest", str(folder), f"executorch=={VERSION}"]
    subprocess.run([sys.executable, *words], check=True)
    (wheel,) = folder.glob("executorch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("executorch/include/", "executorch/lib/")
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(wanted)])
        text = archive.read(f"executorch-{VERSION}.dist-info/{LICENSE}").decode()
    return folder / "executorch", text


def compile_interface(machine: str, executorch: Path, target: Path) -> None:
    """Compile the C interface against a machine's headers and libraries."""
    libraries = [f"-l{name.removeprefix('lib').removesuffix('.so')}" for name in LIBRARIES]
    words = [
        COMPILERS[machine],
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-s",
        "-fvisibility=hidden",
    ]
    words += ["-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
    words += [word for name in INCLUDES for word in ("-isystem", str(executorch / name))]
    words += [f"-D{name}" for name in DEFINITIONS]
    words += [f'-DSEDGE_EXECUTORCH_VERSION="{VERSION}"', str(SOURCE), "-o", str(target)]
    # Kernels and delegates register themselves, so the linker would omit them: no symbol refers to them.
    words += [f"-L{executorch / 'lib'}", "-Wl,--no-as-needed", *libraries, "-Wl,-rpath,$ORIGIN"]
    subprocess.run(words, check=True)


def glibc(files: list[Path]) -> tuple[int, int]:
    """Return the oldest glibc version that has all the symbol versions that these libraries need."""
    words = ["readelf", "--version-info", "--wide", *map(str, files)]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return max((int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", text))


def contents(machine: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a machine's wheel, keyed by their path in the wheel, without RECORD."""
    executorch, text = unpacked(machine, folder)
    compile_interface(machine, executorch, folder / f"lib{PACKAGE}.so")
    libraries = [folder / f"lib{PACKAGE}.so", *(executorch / "lib" / name for name in LIBRARIES)]
    oldest = "_".join(map(str, glibc(libraries)))
    tag = f"py3-none-manylinux_{oldest}_{machine}"
    wheel = f"Wheel-Version: 1.0\nGenerator: sedge\nRoot-Is-Purelib: false\nTag: {tag}\n"
    info = f"{PACKAGE}-{VERSION}.dist-info"
    files = {f"{PACKAGE}/{library.name}": library.read_bytes() for library in libraries}
    return {
        f"{PACKAGE}/__init__.py": INIT.encode(),
        **files,
        f"{info}/licenses/LICENSE": (HERE.parents[1] / "LICENSE").read_bytes(),
        f"{info}/licenses/LICENSE.executorch": text.encode(),
        f"{info}/licenses/NOTICE": (HERE / "NOTICE").read_bytes(),
        f"{info}/METADATA": METADATA.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }


def record(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files together with the RECORD that lists them."""
    path = f"{PACKAGE}-{VERSION}.dist-info/RECORD"
    lines = [f"{path},,"]
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return {**files, path: ("\n".join(sorted(lines)) + "\n").encode()}


def build(machine: str, out: Path) -> Path:
    """Build the wheel for a machine. The same inputs always give the same bytes."""
    with tempfile.TemporaryDirectory() as temporary:
        files = record(contents(machine, Path(temporary)))
    (tag,) = re.findall(rb"^Tag: (.*)$", files[f"{PACKAGE}-{VERSION}.dist-info/WHEEL"], re.M)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{PACKAGE}-{VERSION}-{tag.decode()}.whl"
    partial = path.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return partial.replace(path)


def machines() -> list[str]:
    """Return the machines to build for, which are those whose compiler is installed here."""
    return [name for name in COMPILERS if shutil.which(COMPILERS[name])]


def main(arguments: list[str] | None = None) -> None:
    """Build the wheels and print their paths."""
    parser = argparse.ArgumentParser(description="Builds the wheels of sedge-executorch.")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "dist")
    parser.add_argument("--machine", action="append", choices=sorted(COMPILERS))
    parsed = parser.parse_args(arguments)
    wanted = parsed.machine or machines()
    if not wanted:
        parser.error(f"no compiler: expected {' or '.join(COMPILERS.values())}")
    for machine in wanted:
        path = build(machine, parsed.out)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
