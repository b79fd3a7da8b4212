"""Measures a new device's download of a 20 MB base, over MQTT and over HTTP from a separate web server.

Real processes run on loopback: Mosquitto, ``sedge-cloud serve``, an agent, and a web server for the blobs
in the state folder. For each delivery method it reports the bytes from the broker to the device, the bytes
over HTTP as the device counts them, and the seconds from the run's start until the base is on the device's
disk. It also measures how many bytes a request over TLS 1.3 costs in addition to its blob, which shows
above which size HTTP pays off.
"""

import socket
import ssl
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from tools.bench.harness import Figure, Result, bench
from tools.bench.parts.blob_server import LOOPBACK, serving
from tools.bench.parts.certificates import make_ca, make_certificate
from tools.bench.parts.real_fleet import RealFleet, wait_until
from torch import Tensor, nn

from sedge_cloud.figures.numbers import size
from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.store.opening import open_folder
from sedge_export.exporter import export
from sedge_protocol.host.sockets import socket_bytes
from sedge_protocol.host.web import Span
from sedge_protocol.wire.transfer import describe

ROWS, WIDTH = 24_000, 250  # 20 MB when coded
RUN = """\
strategy = "fedavg"
num_rounds = 1
evaluate = false
min_train_devices = 1
min_available_devices = 1
"""


class Looked(nn.Module):
    """A model with a frozen lookup table and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 10) for images (B, 1, 8, 8)."""
        places = torch.arange(64) * 300 + (x.flatten(1).abs() * 100).long()
        found: Tensor = self.head(self.table(places).mean(1))
        return found


def newcomer(folder: Path, bundle: Path, name: str, over_http: bool) -> dict[str, float]:
    """Run the first round of a new device, the only one in its fleet. Returns the bytes and seconds."""
    with ExitStack() as stack:
        fleet = RealFleet(folder)
        stack.callback(fleet.close)
        server = stack.enter_context(serving(folder=folder / "state" / "blobs"))
        if over_http:
            config = folder / "cloud.toml"
            config.write_text(config.read_text() + f'[blobs]\npublic = "{server.url}"\n')
        fleet.start_cloud()
        fleet.add_device("pi-1", 0)
        fleet.start_agent("pi-1")
        wait_until(lambda: bool(fleet.hellos()), 60, "the device is there")
        began = time.monotonic()
        fleet.start_run(bundle, RUN)
        arrived = folder / "pi-1" / "state" / "blobs" / name
        while not arrived.exists():
            time.sleep(0.002)
        seconds = time.monotonic() - began
        wait_until(fleet.finished, 120, "the run ends")
        store = open_folder(folder / "state")
        stack.callback(store.close)
        (moved,), sums = store.traffic("run", 1), read_sums(store.sums("run"))
        return {
            "mqtt_down": moved.down, "mqtt_up": moved.up, "http": sums.http,
            "coordinator_up": sums.link_up, "seconds": round(seconds, 2),
        }  # fmt: skip


def request_bytes(folder: Path, count: int = 65_536) -> int:
    """Return the bytes of an HTTPS request and response beyond the blob, not counting TCP/IP headers."""
    make_ca(folder, "ca")
    make_certificate(folder, "server", "ca", f"IP:{LOOPBACK}")
    blob, moved, done = bytes(count), list[int](), threading.Event()
    manifest = describe(blob)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with ExitStack() as stack:
        server = stack.enter_context(serving(blobs={manifest.sha256.hex(): blob}))
        front = stack.enter_context(socket.create_server((LOOPBACK, 0)))

        def pass_on() -> None:
            with (
                context.wrap_socket(front.accept()[0], server_side=True) as outer,
                socket.create_connection((LOOPBACK, server.server_address[1])) as inner,
            ):
                inner.sendall(outer.recv(65_536))
                while data := inner.recv(65_536):
                    outer.sendall(data)
                done.wait(10)
                moved.extend(socket_bytes(outer))

        thread = threading.Thread(target=pass_on)
        thread.start()
        url = f"https://{LOOPBACK}:{front.getsockname()[1]}/{manifest.sha256.hex()}"
        span = Span(url, manifest, 0, 1, ca_file=str(folder / "ca.crt"))
        for _ in span.chunks():
            done.set()
        thread.join()
    return sum(moved) - count


def figures(found: Result) -> list[Figure]:
    """Return a figure for each delivery method, and for the overhead of a request."""
    ways = [
        Figure(
            f"a newcomer's base of {size(found['base'])} over {way}",
            f"{size(found[way]['mqtt_down'])} from the broker, {size(found[way]['http'])} over HTTP, "
            f"{size(found[way]['coordinator_up'])} from the coordinator; {found[way]['seconds']} s",
        )
        for way in ("mqtt", "http")
    ]
    return [*ways, Figure("a request over TLS", size(found["request"]))]


@bench("A large base", figures)
def measure() -> Result:
    """Measure each delivery method, and the overhead of a request."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        sample, bundle = torch.rand(16, 1, 8, 8), home / "bundle"
        manifest = export(Looked(), sample, batch_size=16, name="t", num_classes=10, folder=bundle)
        assert manifest.frozen is not None
        blob = manifest.frozen.blob
        found: Result = {"base": blob.size}
        for way, over_http in (("mqtt", False), ("http", True)):
            (home / way).mkdir()
            found[way] = newcomer(home / way, bundle, blob.sha256.hex(), over_http)
        return found | {"request": request_bytes(home)}
