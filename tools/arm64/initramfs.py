"""Builds an initramfs for one kernel: busybox, the modules that a disk needs, and a script that mounts it.

Debian's own tools would have to run on the target machine.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs none /dev
for module in {modules}; do /bin/busybox insmod "/$module.ko"; done
/bin/busybox mount -t proc none /proc
until disk=$(/bin/busybox findfs LABEL={label}); do /bin/busybox sleep 0.2; done
/bin/busybox mount -t ext4 "$disk" /disk
/bin/busybox umount /proc
exec /bin/busybox switch_root /disk /lib/systemd/systemd
"""
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_FOLDER, _PROGRAM = 0o040755, 0o100755


def initramfs(root: Path, modules: Sequence[str], label: str) -> bytes:
    """Build the initramfs for the kernel in ``root``. It starts systemd from the disk with this label.

    A module without a file is assumed to be built into the kernel.
    """
    files = {path.stem.replace("-", "_"): path for path in (root / "lib/modules").rglob("*.ko")}
    wanted: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in files and name not in wanted:
            data = files[name].read_bytes()
            found = _DEPENDS.search(data)
            for other in found[1].decode().split(",") if found else []:
                add(other.replace("-", "_"))
            wanted[name] = data

    for name in modules:
        add(name)
    script = _INIT.format(modules=" ".join(wanted), label=label).encode()
    busybox = (root / "bin/busybox").read_bytes()
    entries = [(name, _FOLDER, b"") for name in ("bin", "dev", "proc", "disk")]
    entries += [("init", _PROGRAM, script), ("bin/busybox", _PROGRAM, busybox)]
    entries += [(f"{name}.ko", _PROGRAM, data) for name, data in wanted.items()]
    return b"".join(_archive(entries))


def _archive(entries: Sequence[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """Yield the pieces of a cpio archive ("newc") of files, given by name, mode and content."""
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")]):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        yield header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4)
