"""Runs a small arm64 machine with Debian and systemd in qemu: 512 MB, two Cortex-A53, user-mode network.

Inside the machine, the host's address is 10.0.2.2. debian.py builds the machine's Debian; the settings
below replace the ones that the packages' scripts would have made. A second disk has the files to install
and the script that installs them.
"""

import shutil
import subprocess
from pathlib import Path

from tools.arm64.debian import debian
from tools.arm64.initramfs import initramfs
from tools.arm64.kept import kept

MEMORY_MB = 512
HOST = "10.0.2.2"
TOOLS = {
    "debootstrap": "debootstrap",
    "qemu-system-aarch64": "qemu-system-arm",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "mke2fs": "e2fsprogs",
    "mosquitto": "mosquitto",
}
_PACKAGES = (
    "systemd-sysv", "udev", "kmod", "linux-image-arm64", "busybox-static", "python3-venv",
    "ca-certificates",
)  # fmt: skip
_MODULES = ("virtio_mmio", "virtio_blk", "virtio_net", "crc32c_generic", "ext4")
_DISK = "1500M"
_NETWORK = f"""\
[Match]
Type=ether
[Network]
Address=10.0.2.15/24
Gateway={HOST}
"""
# A service that runs the installation script of the second disk once.
_INSTALL = """\
[Unit]
Description=Installation
After=network-online.target
Wants=network-online.target
RequiresMountsFor=/media
ConditionPathExists=!/etc/installed
[Service]
Type=oneshot
ExecStart=/bin/sh -ex /media/install.sh
ExecStartPost=/bin/touch /etc/installed
StandardOutput=journal+console
StandardError=journal+console
"""
# A service that provides a root shell on the serial line.
_SHELL = """\
[Unit]
Description=Shell
[Service]
Environment=HOME=/root
ExecStart=/bin/sh
StandardInput=tty
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyAMA0
Restart=always
"""
_WANTED = {
    "multi-user.target": ("systemd-networkd.service", "install.service", "shell.service"),
    "network-online.target": ("systemd-networkd-wait-online.service",),
}
_KERNEL = (
    "console=ttyAMA0 systemd.getty_auto=no systemd.show_status=no systemd.journald.forward_to_console=1 "
    "systemd.journald.max_level_console=info"
)


def _configure(root: Path) -> None:
    etc = root / "etc"
    (etc / "machine-id").write_text("5ed9e" + "0" * 26 + "1\n")
    (etc / "hostname").write_text("pi-1\n")
    # On a busy host, the emulated machine takes longer to find a disk than systemd waits by default.
    (etc / "fstab").write_text("LABEL=stick /media ext4 ro,x-systemd.device-timeout=900 0 0\n")
    (etc / "systemd/network/any.network").write_text(_NETWORK)
    units = etc / "systemd/system"
    (units / "install.service").write_text(_INSTALL)
    (units / "shell.service").write_text(_SHELL)
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    for target, wanted in _WANTED.items():
        folder = units / f"{target}.wants"
        folder.mkdir(exist_ok=True)
        for name in wanted:
            place = units if (units / name).exists() else Path("/lib/systemd/system")
            (folder / name).symlink_to(
                Path("/etc/systemd/system" if place is units else place) / name
            )


def disk(folder: Path, label: str, file: Path, size: str) -> None:
    """Write a folder's contents into a file as an ext4 file system, all owned by root."""
    words = ["mke2fs", "-q", "-t", "ext4", "-L", label, "-E", "root_owner=0:0", "-d", str(folder)]
    subprocess.run([*words, str(file), size], check=True)


def system() -> Path:
    """Return a folder with the kernel, initrd and disk of a machine that has never been booted."""

    def make(folder: Path) -> None:
        root = folder / "root"
        subprocess.run(["cp", "-a", debian("machine", _PACKAGES), root], check=True)
        _configure(root)
        (kernel,) = (root / "boot").glob("vmlinuz-*")
        shutil.copy(kernel, folder / "kernel")
        (folder / "initrd").write_bytes(initramfs(root, _MODULES, "system"))
        for unused in ("boot", "lib/modules", "usr/share/doc", "usr/share/locale"):
            shutil.rmtree(root / unused)
        (root / "boot").mkdir()
        disk(root, "system", folder / "disk", _DISK)
        shutil.rmtree(root)

    sources = ("debian.py", "initramfs.py", "machine.py")
    return kept("system", [(Path(__file__).parent / name).read_bytes() for name in sources], make)


class Machine:
    """An emulated machine. ``folder`` has its disks and the log of its serial line."""

    def __init__(self, folder: Path, stick: Path) -> None:
        self._folder, self._system = folder, system()
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run(
            ["cp", "--sparse=always", self._system / "disk", folder / "disk"], check=True
        )
        disk(stick, "stick", folder / "stick", "300M")

    def boot(self) -> None:
        """Power on the machine."""
        words = ["qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a53", "-smp", "2"]
        words += ["-m", str(MEMORY_MB), "-display", "none", "-monitor", "none", "-serial", "stdio"]
        words += ["-no-reboot", "-netdev", "user,id=net", "-device", "virtio-net-device,netdev=net"]
        words += [
            "-append",
            _KERNEL,
            "-kernel",
            str(self._system / "kernel"),
            "-initrd",
            str(self._system / "initrd"),
        ]
        for name, options in (("disk", ""), ("stick", ",readonly=on")):
            words += ["-drive", f"file={self._folder / name},format=raw,if=none,id={name}{options}"]
            words += ["-device", f"virtio-blk-device,drive={name}"]
        with (self._folder / "serial.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def tell(self, command: str) -> None:
        """Type a line into the shell."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def log(self) -> str:
        """Return the output on the serial line since the first boot."""
        return (self._folder / "serial.log").read_text(errors="replace").replace("\r", "")

    def cut_power(self) -> None:
        """Kill the machine, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
