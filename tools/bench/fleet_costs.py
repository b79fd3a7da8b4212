"""Measures the cost of a device and of an idle connection, to plan a fleet (``sedge-emulate cost``).

Traffic is measured in ``examples/fashion_mnist.toml`` under FedOBP, counted at the emulator's link: a
device's first round, with everything that a newcomer downloads, and a later round. A broadcast reaches all
devices but leaves the coordinator only once, so it is counted separately from bytes for single devices. The
cost of a device's row is the growth of the database per enrolled device. The cost of a connection is the
growth of Mosquitto's memory per silent client with the same subscriptions as a device.
"""

import resource
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.store.opening import open_folder
from sedge_emulate import result
from sedge_emulate.broker.brokers import Broker
from sedge_emulate.cost import Use, measured
from sedge_emulate.fleet_plan import DeviceCosts, RoundTraffic
from sedge_emulate.result import read_json
from sedge_protocol.wire.keys import SECRET_BYTES
from sedge_protocol.wire.topics import down, hint, shard_of

FLEET = Path(__file__).parents[2] / "examples" / "fashion_mnist.toml"
STRATEGY = "FedOBP"
ENROLLED = 20_000


def few_rounds(folder: Path, rounds: int) -> result.Result:
    """Run the fleet for a few rounds."""
    words = ["run", str(FLEET), "--only", STRATEGY, "--rounds", str(rounds), "--link", "memory"]
    command = [sys.executable, "-m", "sedge_emulate", *words, "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read_json(folder / "result.json")


def broadcast_bytes(played: result.Result) -> float:
    """Return the mean bytes per later round that the coordinator sends once for all devices.

    The result follows from down = devices * (broadcast + own) and sent = broadcast + devices * own.
    """
    later = [r for r in played.strategies[0].rounds if not r.newcomers]
    shared = [(r.bytes_down - r.coordinator_up) / (r.num_updates - 1) for r in later]
    return sum(shared) / len(shared)


def row_bytes(folder: Path) -> float:
    """Return how much the database grows per enrolled device, in bytes."""
    with closing(open_folder(folder, durable=False)) as store:
        path = folder / "sedge.sqlite"
        store.add_devices({"first": bytes(SECRET_BYTES)})
    before = path.stat().st_size
    with closing(open_folder(folder, durable=False)) as store:
        store.add_devices({f"device-{i:07}": bytes(SECRET_BYTES) for i in range(ENROLLED)})
    return (path.stat().st_size - before) / ENROLLED


def packet(kind: int, body: bytes) -> bytes:
    """Return an MQTT packet of less than 128 bytes."""
    return bytes([kind, len(body)]) + body


def text(value: str) -> bytes:
    """Encode an MQTT string."""
    return struct.pack("!H", len(value)) + value.encode()


def connect(port: int, device: str) -> socket.socket:
    """Connect a silent MQTT 5 client with the same subscriptions as a device."""
    link = socket.create_connection(("127.0.0.1", port))
    flags = bytes([5, 2, 0, 0, 0])  # version 5, clean start, no keepalive, no properties
    link.sendall(packet(0x10, text("MQTT") + flags + text(device)))
    head = link.recv(2, socket.MSG_WAITALL)
    link.recv(head[1], socket.MSG_WAITALL)
    for topic in (down("fleet", device), hint("fleet", shard_of(device))):
        link.sendall(packet(0x82, b"\0\1\0" + text(topic) + b"\0"))
        link.recv(2 + 4, socket.MSG_WAITALL)
    return link


def connection_bytes(count: int) -> float:
    """Return how much Mosquitto's memory grows per connection, in bytes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + 1000), most))
    with Broker() as broker, ExitStack() as stack:
        before = memory(broker.pid)
        for number in range(count):
            stack.enter_context(connect(broker.port, f"device-{number:07}"))
        return (memory(broker.pid) - before) / count


def memory(pid: int | None) -> int:
    """Return a process's resident bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if "VmRSS" in line))


def traffic(use: Use) -> RoundTraffic:
    """Return the traffic in the form that the plan uses."""
    return RoundTraffic(round(use.up), round(use.down), round(use.messages, 2), round(use.units, 2))


def figures(found: Result) -> list[Figure]:
    """Return one figure for each cost."""
    return [Figure(key, str(value)) for key, value in found.items()]


@bench("The costs of a device", figures)
def measure(connections: int = 5000, rounds: int = 6) -> Result:
    """Measure ``rounds`` rounds of the fleet, its database rows, and ``connections`` silent connections."""
    with tempfile.TemporaryDirectory(prefix="sedge-costs-") as name:
        played = few_rounds(Path(name) / "fleet", rounds)
        row = row_bytes(Path(name) / "rows")
    first, later = measured(played.strategies[0])
    costs = DeviceCosts(
        parameters=played.model.parameters,
        first=traffic(first),
        later=traffic(later),
        broadcast_bytes=round(broadcast_bytes(played)),
        device_row_bytes=round(row),
        connection_bytes=round(connection_bytes(connections)),
    )
    found: Result = msgspec.to_builtins(costs)
    return found
