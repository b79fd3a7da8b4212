"""``python -m tools.deb``: builds sedge-cloud and sedge-edge for Debian 12 and 13, amd64 and arm64.

The .deb files go to dist/debian12 and dist/debian13, each of which is a repository for apt. Older versions
stay there.

Each package contains the project's wheel and the wheels of its dependencies, in the versions that
constraints.txt pins, for its Debian release's Python. Nothing is compiled, so any machine can build every
package. For the same release of Sedge, the package for the newer Debian has the higher version number.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import wheels
from tools.deb import repository

ROOT = Path(__file__).parents[2]
PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
# The Python version of each Debian release.
PYTHONS = {12: (3, 11), 13: (3, 13)}
# The minor version of the newest glibc that wheels may need; both Debian releases have a newer one.
GLIBC = 28
SCRIPTS = Path(__file__).with_name("scripts")
EXTRAS = {"cloud": "cloud,http,safetensors,stores", "edge": "onnx,images,safetensors"}
RECOMMENDS = {
    "cloud": "mosquitto, ca-certificates",
    "edge": "systemd-timesyncd | time-daemon",
}
# The modules that each package's commands run. A command is named after its module, with hyphens.
COMMANDS = {
    "cloud": ("sedge_cloud", "sedge_conformance", "sedge_export"),
    "edge": ("sedge_edge",),
}
# The replacement for each placeholder in a package's maintainer scripts. DELETED has the files to delete.
WORDS = {
    "cloud": {
        "QUESTION": "the coordinator's keys, passwords and runs",
        "STAYS": "/etc/sedge, /etc/mosquitto/sedge and /var/lib/sedge-cloud",
        "LOSS": "Without them the fleet's devices can never be reached again, and its models are lost.",
        "DELETED": "/var/lib/sedge-cloud /etc/sedge/cloud.toml /etc/sedge/coordinator-password "
        "/etc/sedge/ca.key /etc/sedge/coordinator.crt /etc/sedge/coordinator.key "
        "/etc/systemd/system/sedge-cloud-accounts.path /etc/systemd/system/sedge-cloud-accounts.service "
        "/etc/mosquitto/sedge /etc/mosquitto/conf.d/00-sedge.conf",
        "OTHER": "edge.toml",
    },
    "edge": {
        "QUESTION": "the device's secret, models and unsent updates",
        "STAYS": "/etc/sedge and /var/lib/sedge",
        "LOSS": "The device then needs a new secret to take part again. Its training data stays.",
        "DELETED": "/var/lib/private/sedge /var/lib/sedge /etc/sedge/edge.toml /etc/sedge/secret "
        "/etc/sedge/device.pem /etc/sedge/device.key",
        "OTHER": "cloud.toml",
    },
}
CONTROL = """\
Package: sedge-{part}
Version: {version}
Architecture: {architecture}
Maintainer: Sedge developers <sedge@localhost>
Depends: python3 (>= {low}), python3 (<< {high}), adduser, debconf
Recommends: {recommends}
Section: science
Priority: optional
Description: Sedge {part}: personalised federated learning for small devices
 Installed in /opt/sedge, together with the Python packages that it needs.
"""
# -P prevents imports from the working directory. Child processes also get PYTHONPATH.
COMMAND = """\
#!/bin/sh
PYTHONPATH=/opt/sedge/{part}/lib PYTHONNOUSERSITE=1 exec /usr/bin/python3 -P -m {module} "$@"
"""


def main() -> None:
    """Build the requested packages (by default all), print their names, and write the indexes."""
    parser = argparse.ArgumentParser("tools.deb", description=__doc__)
    parser.add_argument("--architecture", choices=PLATFORMS, action="append")
    parser.add_argument("--debian", type=int, choices=PYTHONS, action="append")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--sign-with", metavar="KEY", help="a secret key in gpg, for example by its e-mail address"
    )
    arguments = parser.parse_args()
    if lacking := repository.lacks(arguments.sign_with):
        parser.error(lacking)
    os.umask(0o022)  # files and folders are packed with the modes that they get here
    with tempfile.TemporaryDirectory() as folder:
        words = ["wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(ROOT)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        (wheel,) = Path(folder).glob("sedge_fl-*.whl")
        for debian in arguments.debian or PYTHONS:
            out: Path = arguments.out / f"debian{debian}"
            out.mkdir(parents=True, exist_ok=True)
            for architecture in arguments.architecture or PLATFORMS:
                for part in EXTRAS:
                    stage = Path(folder) / f"{part}-{architecture}-{debian}"
                    print(build(part, architecture, debian, wheel, stage, out))
            repository.publish(out, arguments.sign_with)


def build(part: str, architecture: str, debian: int, wheel: Path, stage: Path, out: Path) -> Path:
    """Build one package in the empty folder ``stage``. Returns its path in ``out``."""
    version, opt = f"{wheel.name.split('-')[1]}+deb{debian}", stage / "opt/sedge"
    low = PYTHONS[debian]
    library = opt / part / "lib"
    wanted = [f"{wheel}[{EXTRAS[part]}]"]
    wheels.install(library, wanted, ".".join(map(str, low)), PLATFORMS[architecture], GLIBC)
    # The scripts that pip installed start with the path of this machine's Python, so they would not run.
    shutil.rmtree(library / "bin", ignore_errors=True)
    shutil.move(library / "share/sedge", opt / part / "share/sedge")
    for module in COMMANDS[part]:
        name = module.replace("_", "-")
        _write(opt / "bin" / name, COMMAND.format(part=part, module=module), 0o755)
        link = stage / "usr/bin" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/opt/sedge/bin/{name}")
    unit = f"sedge-{part}.service"
    text = (opt / part / "share/sedge" / unit).read_text()
    documented = text.replace("/opt/sedge/share", f"/opt/sedge/{part}/share")
    _write(stage / "usr/lib/systemd/system" / unit, documented)
    high = (low[0], low[1] + 1)
    control = CONTROL.format(
        part=part,
        version=version,
        architecture=architecture,
        recommends=RECOMMENDS[part],
        low=".".join(map(str, low)),
        high=".".join(map(str, high)),
    )
    _write(stage / "DEBIAN/control", control)
    for script in SCRIPTS.iterdir():
        mode = 0o644 if script.name == "templates" else 0o755
        _write(stage / "DEBIAN" / script.name, _worded(script.read_text(), part), mode)
    stage.chmod(0o755)
    package = out / f"sedge-{part}_{version}_{architecture}.deb"
    words = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", str(stage), str(package)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return package


def _worded(script: str, part: str) -> str:
    """Return a maintainer script with its placeholders replaced by this package's words."""
    for name, words in {"PART": part, **WORDS[part]}.items():
        script = script.replace(name, words)
    return script


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


if __name__ == "__main__":
    main()
