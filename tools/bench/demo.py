"""Reports the bytes of the README's demo: a device's traffic, an update and the broadcast, at sockets.

It reads the result of ``make demo``, or runs ``examples/phones.toml`` if there is none.
"""

import json
from pathlib import Path

import msgspec
from tools.bench.fleets import emulated
from tools.bench.harness import Figure, bench
from tools.bench.harness import Result as Json

from sedge_cloud.figures.numbers import size
from sedge_emulate.headline import headline
from sedge_emulate.result import Result

FLEET = Path(__file__).parents[2] / "examples" / "phones.toml"


def figures(found: Json) -> list[Figure]:
    """Return the first strategy's bytes. Raises ``msgspec.ValidationError``, a ``ValueError``."""
    result = msgspec.convert(found, Result)
    first = result.strategies[0]
    row = headline(first)
    device, new = row.rates.device, row.rates.newcomer
    both = f"{row.name}, per device and round after its first, both ways, against dense both ways"
    dense, payload = first.bytes.dense_update, first.bytes.update_payload_mean
    sent = first.bytes.coordinator_up / (len(first.rounds) + 1) / dense
    update = f"one update of {first.name}, against dense float32"
    broadcast = (
        f"coordinator's upload per round, {result.devices} devices, relative to one dense model"
    )
    return [
        Figure(both, f"{size(device.both)}, {1 / row.of_dense:.0f} times smaller"),
        Figure("of these, up and down", f"{size(device.up)} and {size(device.down)}"),
        Figure("a device's first round, up and down", f"{size(new.up)} and {size(new.down)}"),
        Figure(update, f"{size(payload)}, {dense / payload:.0f} times smaller"),
        Figure(broadcast, f"{sent:.2f}"),
    ]


@bench("Bytes of a fleet", figures)
def measure(out: Path = Path("runs/demo")) -> Json:
    """Return the demo's whole result."""
    emulated(FLEET, out)
    found: Json = json.loads((out / "result.json").read_text())
    return found
