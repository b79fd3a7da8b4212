"""``python -m tools.deb``: sedge-cloud and sedge-edge as .deb, for amd64 and arm64, in dist/.

Each holds the project's wheel and the wheels that it needs, at the versions of constraints.txt, for the
Python of Debian 12. Nothing is compiled here, so either machine's packages are built on any.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
PYTHON = (3, 11)
EXTRAS = {"cloud": "cloud,http,safetensors", "edge": "onnx,images,safetensors"}
RECOMMENDS = {"cloud": "mosquitto, openssl", "edge": "systemd-timesyncd | time-daemon"}
CONTROL = """\
Package: sedge-{part}
Version: {version}
Architecture: {architecture}
Maintainer: Sedge developers <sedge@localhost>
Depends: python3 (>= {low}), python3 (<< {high}), adduser
Recommends: {recommends}
Section: science
Priority: optional
Description: Sedge {part}: personalised federated learning for small devices
 Lies in /opt/sedge, with the Python packages that it needs.
"""
# -P: neither the working folder nor what lies there is imported. PYTHONPATH reaches child processes too.
COMMAND = """\
#!/bin/sh
PYTHONPATH=/opt/sedge/{part}/lib PYTHONNOUSERSITE=1 exec /usr/bin/python3 -P -m sedge_{part} "$@"
"""
POSTINST = """\
#!/bin/sh
set -e
# The service may not write here: without bytecode it would compile everything at every start.
/usr/bin/python3 -m compileall -q -x /tests/ /opt/sedge/{part}/lib
{user}if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""
USER = "adduser --system --quiet --group --no-create-home --home /nonexistent sedge-cloud\n"
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now sedge-{part}; fi
find /opt/sedge/{part}/lib -name __pycache__ -prune -exec rm -r {{}} +
"""


def main() -> None:
    """Build the packages that are asked for, all by default, and name them."""
    parser = argparse.ArgumentParser("tools.deb", description=__doc__)
    parser.add_argument("--architecture", choices=PLATFORMS, action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    os.umask(0o022)  # files and folders are packed with the modes that they get here
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        _pip("wheel", "--no-deps", "--wheel-dir", folder, str(ROOT))
        (wheel,) = Path(folder).glob("sedge_fl-*.whl")
        for architecture in arguments.architecture or PLATFORMS:
            for part in EXTRAS:
                stage = Path(folder) / f"{part}-{architecture}"
                print(build(part, architecture, wheel, stage, out))


def build(part: str, architecture: str, wheel: Path, stage: Path, out: Path) -> Path:
    """One package, staged in an empty folder."""
    version, opt = wheel.name.split("-")[1], stage / "opt/sedge"
    library = opt / part / "lib"
    tags = [f"manylinux_{glibc}_{PLATFORMS[architecture]}" for glibc in ("2_28", "2_27", "2_17")]
    _pip(
        "install", "--target", str(library), "--only-binary=:all:", "--no-compile",
        "--python-version", ".".join(map(str, PYTHON)), "--implementation", "cp",
        *(word for tag in (*tags, f"manylinux2014_{PLATFORMS[architecture]}")
          for word in ("--platform", tag)),
        "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[{EXTRAS[part]}]",
    )  # fmt: skip
    shutil.rmtree(library / "bin", ignore_errors=True)  # scripts with the path of this Python
    shutil.move(library / "share/sedge", opt / part / "share/sedge")
    _write(opt / f"bin/sedge-{part}", COMMAND.format(part=part), 0o755)
    unit = f"sedge-{part}.service"
    text = (opt / part / "share/sedge" / unit).read_text()
    documented = text.replace("/opt/sedge/share", f"/opt/sedge/{part}/share")
    _write(stage / "lib/systemd/system" / unit, documented)
    command = stage / f"usr/bin/sedge-{part}"
    command.parent.mkdir(parents=True)
    command.symlink_to(f"/opt/sedge/bin/sedge-{part}")
    low, high = PYTHON, (PYTHON[0], PYTHON[1] + 1)
    control = CONTROL.format(
        part=part,
        version=version,
        architecture=architecture,
        recommends=RECOMMENDS[part],
        low=".".join(map(str, low)),
        high=".".join(map(str, high)),
    )
    _write(stage / "DEBIAN/control", control)
    user = USER if part == "cloud" else ""
    _write(stage / "DEBIAN/postinst", POSTINST.format(part=part, user=user), 0o755)
    _write(stage / "DEBIAN/prerm", PRERM.format(part=part), 0o755)
    stage.chmod(0o755)
    package = out / f"sedge-{part}_{version}_{architecture}.deb"
    words = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", str(stage), str(package)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return package


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words, "--quiet"], check=True)


if __name__ == "__main__":
    main()
