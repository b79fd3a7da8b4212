"""Finds the largest message that a broker forwards, by sending messages that come back to their sender.

A broker need not announce its limit. Measured with Mosquitto 2.0.11: above ``max_packet_size`` it ends the
connection, and only MQTT 5 has that limit in its CONNACK. Above ``message_size_limit`` it drops a QoS 0
message silently, and in MQTT 3.1.1 it acknowledges a QoS 1 message that it drops. So only a message that
comes back proves that its size is accepted.

Each attempt sends a large message and a small one after it; a broker keeps their order. Its result may be:

    the large one comes back             the size is good: try the next larger one
    only the small one comes back        the size is bad if this happens twice, as any message may be lost
    the connection ends before either    the size is bad for an hour if this happens twice
    neither comes back                   try again, waiting twice as long, for slow links
    nothing ever comes back              assume the smallest limit: the broker denies us our own topic
"""

from sedge_protocol.wire.frame import LEAST_PACKET_BYTES, MAX_PACKET_BYTES

# The MQTT packet sizes to try. The first one shows whether the link works at all; 64 and 128 KiB are the
# limits of many cloud brokers.
PACKET_SIZES = (1024, LEAST_PACKET_BYTES, 2**15, 2**16, 2**17, MAX_PACKET_BYTES)
# The maximum size of a small message, which is assumed to be the limit if nothing larger comes back.
SMALL = 256
FAILURES = 2
BELIEVED_S = 3600.0
SILENCE_S, MOST_SILENCE_S = 5.0, 60.0
# After this many small messages that did not come back, assume that none ever will.
DEAF_TRIES = 4


class LimitProbe:
    """Finds the largest packet that comes back. Starts again, near the last result, on every connection.

    Each message has a unique number. ``limit`` (bytes) is None until it is known for this connection. If
    nothing comes back, ``deaf`` is true and ``LEAST_PACKET_BYTES`` is assumed.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self.deaf = False
        self._sizes: tuple[int, ...] = ()
        self._place = 0  # index of the size being tried
        self._good, self._bad = (
            -1,
            0,
        )  # indices of the largest size that came back and the smallest that did not
        self._last = 0  # the size that last came back, on any connection
        self._ends = MAX_PACKET_BYTES + 1  # a size that probably ends the connection
        self._ends_until = 0.0
        self._ended: tuple[
            int, ...
        ] = ()  # sizes of the messages after which the last connections ended
        self._failures = 0
        self._number = 0  # number of the last large message; the small one has the next number
        self._first = 0  # number of the first large message of the size being tried
        self._tries = 0  # attempts with this size without a result
        self._due: float | None = None

    def connected(self, announced: int, now: float) -> None:
        """Start measuring on a new connection, up to the limit that the broker ``announced``."""
        if now > self._ends_until:
            self._ends, self._ends_until = MAX_PACKET_BYTES + 1, now + BELIEVED_S
        announced = min(announced, MAX_PACKET_BYTES)
        sizes = (*(size for size in PACKET_SIZES if size < announced), announced)
        self._sizes = tuple(size for size in sizes if size < self._ends)
        self._good, self._bad, self.limit, self.deaf = -1, len(self._sizes), None, False
        self._try(0, now)

    def disconnected(self) -> None:
        """Stop measuring because the link is down. A large message may have been the cause."""
        if self._due is not None and self._good >= 0:
            size = self._sizes[self._place]
            self._ended = (*self._ended, size)[-FAILURES:]
            if self._ended.count(size) == FAILURES:
                self._ends, self._ended = size, ()
        self._due = None

    def poll(self, now: float) -> list[tuple[int, int]]:
        """Return the numbers and packet sizes of the messages to send now."""
        if self._due is None or now < self._due:
            return []
        if self._good < 0 and self._tries == DEAF_TRIES:
            self.limit, self.deaf, self._due = LEAST_PACKET_BYTES, True, None
            return []
        self._due = now + min(SILENCE_S * 2**self._tries, MOST_SILENCE_S)
        self._tries += 1
        self._number += 2
        return [(self._number, self._sizes[self._place]), (self._number + 1, SMALL)]

    def timer(self) -> float | None:
        """Return when ``poll`` is next due."""
        return self._due

    def came_back(self, number: int, now: float) -> None:
        """Record that the message with this number has come back."""
        if self._due is None or not self._first <= number <= self._number + 1:
            return
        # A large message of the size being tried came back. On a slow link it may not be the last one sent.
        if (number - self._first) % 2 == 0:
            known = 0 if self._place else sum(size <= self._last for size in self._sizes) - 1
            self._good, self._failures = self._place, 0
            self._try(max(self._place + 1, known), now)
            return
        self._failures += 1
        if self._failures < FAILURES:
            self._due = now
            return
        self._bad, self._failures = self._place, 0
        self._try(self._place - 1, now)

    def _try(self, place: int, now: float) -> None:
        """Try another size, or finish if the limit is known."""
        # After the last pair's small message, which says nothing about this size.
        self._first, self._tries = self._number + 2, 0
        if self._good < place < self._bad:
            self._place, self._due = place, now
            return
        self._ended, self._failures = (), 0
        self.limit, self._due = SMALL if self._good < 0 else self._sizes[self._good], None
        self._last = self.limit
