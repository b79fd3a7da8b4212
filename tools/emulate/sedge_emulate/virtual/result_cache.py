"""Caches the results of finished jobs, from which an interrupted emulation resumes.

A virtual run is a pure function of its description: if it is replayed from the beginning, it requests
the same jobs in the same order. Only training takes long, so its outcomes are stored. Each gets a file,
which is written atomically before anything depends on the outcome. A replay takes the results of
finished jobs from this cache, so it reaches the point of interruption within seconds. It then
continues, and its final result is the same, byte for byte.

A job is named by the hash of everything that its outcome depends on. The files are MessagePack, written
and read only by this program.
"""

import hashlib
from pathlib import Path

import msgspec

from sedge_edge.jobs.job import Job
from sedge_emulate.attack import Attack
from sedge_emulate.workers.worker import Finished
from sedge_protocol.host.disk import translated


def job_key(fleet: bytes, device: str, job: Job, attack: Attack | None = None) -> bytes:
    """Return the name (32 bytes) of a job. ``fleet`` is a digest of data, trainer and versions."""
    parts = (fleet, device.encode(), msgspec.msgpack.encode((job, attack)))
    return hashlib.sha256(
        b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    ).digest()


class ResultCache:
    """Stores the outcomes of jobs below ``folder``.

    A replay calls ``keep`` again for each outcome that earlier processes stored; after the last of
    these calls it has caught up.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decoder = msgspec.msgpack.Decoder(Finished)
        with translated("make folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._ahead = {path.name for path in folder.glob("*/*") if not path.suffix}

    @property
    def ahead(self) -> int:
        """The number of outcomes, stored by earlier processes, that the replay has not reached yet."""
        return len(self._ahead)

    @property
    def caught_up(self) -> bool:
        """True once ``keep`` has been called again for all outcomes that earlier processes stored."""
        return not self._ahead

    def find(self, key: bytes) -> Finished | None:
        """Return the stored outcome of a job, or None. A damaged file is deleted, so the job is done again.

        Raises ``StorageError`` for a file that cannot be read.
        """
        path = self._path(key)
        with translated("read", path):
            if not path.exists():
                return None
            data = path.read_bytes()
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError:  # the power failed before the file was flushed
            with translated("remove", path):
                path.unlink()
            return None

    def keep(self, key: bytes, done: Finished) -> None:
        """Store an outcome atomically; does nothing if it is already stored."""
        path = self._path(key)
        self._ahead.discard(path.name)
        if path.exists():
            return
        partial = path.with_suffix(".part")
        with translated("write", path):
            path.parent.mkdir(exist_ok=True)
            partial.write_bytes(msgspec.msgpack.encode(done))
            partial.replace(path)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name
