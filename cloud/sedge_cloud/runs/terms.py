"""A run's requirements on devices, as stored in its row, and their comparison with hellos.

No strategy is run for this.
"""

import msgspec

from sedge_protocol.wire.bundle import WITHOUT_PROGRAMS
from sedge_protocol.wire.frame import MAX_PACKET_BYTES
from sedge_protocol.wire.messages import Hello


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run's requirements on devices. If ``select`` is set, devices must match this condition.

    A device must run one of the ``backends``, and support the ``compressions``, the ``codecs`` and, for the
    orders that it would get now, the ``features``. It needs room for ``frozen_bytes`` of frozen data and,
    depending on the backend, ``memory_mb`` for a job (0: unknown). ``packets`` are the packet sizes that
    suffice for the run's orders. ``tensors`` has the size of each of the model's tensors.
    """

    strategy: str = ""
    select: str = ""
    total_rounds: int = 0
    min_updates: int = 1
    min_available_devices: int = 1
    backends: tuple[str, ...] = ()
    compressions: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    frozen_bytes: int = 0
    memory_mb: dict[str, int] = {}
    packets: tuple[int, ...] = ()
    tensors: dict[str, int] = {}

    def missing(self, hello: Hello) -> list[str]:
        """Describe what a device with this hello lacks for the run's work."""
        memory = without_memory(self.memory_mb, hello)
        if self.frozen_bytes and 0 < hello.memory_mb * 10**6 < 2 * self.frozen_bytes:
            memory = [f"memory for {self.frozen_bytes / 1e6:.0f} MB of frozen data"]
        runs = set(self.backends).intersection(hello.backends)
        return [
            *([] if runs else [f"a backend of {', '.join(self.backends)}"]),
            *(name for name in self.compressions if name not in hello.compressions),
            *(name for name in self.codecs if name not in hello.codecs),
            *memory,
            *without_link(self.packets, packet_limit(hello)),
            *(name for name in self.features if name not in hello.codecs),
        ]

    @staticmethod
    def read(coded: bytes) -> "Terms":
        """Decode terms from a run's row. If no coordinator has loaded the run yet, return the defaults."""
        return msgspec.msgpack.decode(coded, type=Terms) if coded else Terms()


def keeps_model(hello: Hello | None, run: str) -> bool:
    """Return True if a device still has its data for a run, as far as is known, or has sent no hello."""
    return hello is None or hello.holds is None or run in hello.holds


def abilities(hello: Hello | None) -> Hello | None:
    """Return a hello reduced to what describes the device itself: no nonce, kept data or waiting."""
    return hello and msgspec.structs.replace(hello, nonce=bytes(16), waits="", holds=None)


def without_memory(memory_mb: dict[str, int], hello: Hello) -> list[str]:
    """Describe the memory that a device lacks for a job; an empty list if none, or if unknown."""
    able = [memory_mb[name] for name in hello.backends if name in memory_mb]
    if able and WITHOUT_PROGRAMS.isdisjoint(hello.backends) and 0 < hello.memory_mb < min(able):
        return [f"memory for a job: {min(able)} MB, but it has {hello.memory_mb}"]
    return []


def without_link(packets: tuple[int, ...], limit: int) -> list[str]:
    """Describe why orders of these sizes exceed a packet ``limit``; an empty list if any size fits."""
    if not packets or limit >= packets[0]:
        return []
    return [f"a broker that accepts messages of {packets[0]} bytes; {its_limit(limit)}"]


def packet_limit(hello: Hello | None) -> int:
    """Return the size of the largest MQTT packet that a device can receive, according to its hello."""
    return (hello and hello.max_packet) or MAX_PACKET_BYTES


def its_limit(limit: int) -> str:
    """Describe the largest message size, and the setting that limits it."""
    return f"this broker accepts {limit} (Mosquitto: message_size_limit or max_packet_size)"
