"""Writes trace.json: everything that a device sent and was sent in a run, in order, as frames on the wire.

    python -m tests.vectors.make_trace

Both cores are the product's own, in the undisturbed world of tests/hunt. The file is that of protocol
version 2: whoever makes another version keeps it, and writes one of the new version beside it.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from tests.hunt.cases import ADDS_UP, of_all
from tests.hunt.chance import Chance
from tests.hunt.machines import FLEET, lay, secret_of
from tests.hunt.world import World
from tests.vectors.make_frames import Json, fields_of, frame_entry

from sedge_cloud.coding import EXACT, BroadcastConfig
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import Kind, open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import decode_body
from sedge_protocol.wire.topics import blob, down, up

PATH = Path(__file__).with_name("trace.json")
DEVICE = "d0"
# Updates are of several chunks, and the second round's model travels as a step.
CONFIG = of_all(
    msgspec.structs.replace(ADDS_UP, num_rounds=2, codec=EXACT, broadcast=BroadcastConfig())
)
ABOUT = (
    "A device's part in a run of two rounds and an evaluation, in protocol version 2: what was on the "
    "wire, in the order in which it was sent. `secret` is the device's; `frames` are as in frames.json, "
    "chunks on the device's own topics or on a blob's. Written by make_trace.py."
)


def heard() -> list[Send]:
    """What everybody sent in a run of which nothing goes wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay(folder / "laid", CONFIG)
        world = World(folder / "played", folder / "laid", Chance(0, only=()))
        world.judge.adds_up = False
        with world.used():
            world.run()
        return world.link.heard


def frames(sent: Iterable[Send]) -> Iterator[Json]:
    """Those on the device's own topics, and on those of blobs."""
    keys = DeviceKeys.of(secret_of(DEVICE))
    ours = {up(FLEET, DEVICE): keys.up, down(FLEET, DEVICE): keys.down}
    for send in sent:
        topic, sealed = send.topic, send.payload
        if topic not in ours and not topic.startswith(blob(FLEET, b"")):
            continue
        frame = open_frame(sealed, topic, ours.get(topic))
        found = frame_entry(frame.kind.name, topic, ours.get(topic), frame, sealed)
        if frame.kind is not Kind.CHUNK:
            found["message"] = fields_of(decode_body(frame.kind, frame.body))
        yield found


def main() -> None:
    """Write the file, one frame a line."""
    rows = ",\n".join(json.dumps(row) for row in frames(heard()))
    head = f'"about": {json.dumps(ABOUT)},\n"secret": "{secret_of(DEVICE).hex()}"'
    PATH.write_text(f'{{\n{head},\n"frames": [\n{rows}\n]\n}}\n')


if __name__ == "__main__":
    main()
