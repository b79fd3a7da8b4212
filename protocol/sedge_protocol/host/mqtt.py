"""The link to the broker. Only this module uses paho-mqtt, and only it reads a link's socket and clock.

Both sides use it. A link reconnects automatically, with jitter. It guarantees nothing else: a message
passed to ``send`` may be lost, repeated or late, and the coordinator's and agent's cores recover from that.
So everything is sent at QoS 0, and every connection has a new paho client and a clean session. With QoS 1,
a Mosquitto whose queue for a client is full also drops the PUBACKs for that client, and its send window
never opens again. The client id ends in 128 random bits, so that nobody can guess it and take over the
session. A link tries MQTT 5 first, then 3.1.1 if the broker refuses it or does not answer. Callbacks only
append to a list.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sedge_protocol.errors import ConfigError
from sedge_protocol.host import tls
from sedge_protocol.host.broker_url import Endpoint, parse_url
from sedge_protocol.host.sockets import is_readable, socket_bytes
from sedge_protocol.wire.frame import MAX_PACKET_BYTES, packet_bytes
from sedge_protocol.wire.reconnect import Ended, Reconnect

KEEPALIVE_S = 30
CONNECT_TIMEOUT_S = 10.0
# A connection on which we send but receive nothing for this long is replaced, under a new client id. The
# time doubles with each such connection, because the other side may simply not be running.
DEAF_S = 60.0
DEAF_MAX_S = 3600.0
# At most this many frames may be queued in paho. Others wait in the core, as chunk indices rather than
# copies of the data.
WINDOW = 16
READS_PER_STEP = 64
# How long a closing link waits for the broker to read its last messages.
CLOSE_S = 2.0
# The interval at which paho checks its keepalive: a tenth of the shortest keepalive that brokers request.
SERVE_S = 1.0
UNSUPPORTED_VERSION = {"Unsupported protocol version", "Unacceptable protocol version"}


@dataclass(frozen=True)
class BrokerSettings:
    """A broker's address and our account there. ``url`` is ``mqtt://host[:port]``, or ``mqtts://…``.

    For networks that permit only web traffic, ``ws://host[:port][/path]`` or ``wss://…`` selects MQTT over
    websockets; the default path is /mqtt. The client id begins with ``name``, and the link adds a random
    suffix. ``client_pem`` is a private key and its certificate, to be used instead of the two files.
    """

    url: str
    name: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_pem: str | None = field(default=None, repr=False)

    def endpoint(self) -> Endpoint:
        """Parse the url. Raises ``ConfigError`` if it is malformed."""
        return parse_url(self.url)


@dataclass(frozen=True)
class Connected:
    """The broker accepted us. ``max_packet_bytes`` is the largest packet that it accepts."""

    max_packet_bytes: int


@dataclass(frozen=True)
class Disconnected:
    """The link is down. ``reason`` is one line; ``is_news`` is true if it was not logged before."""

    reason: str
    retry_s: float
    is_news: bool = True

    def log(self, log: logging.Logger) -> None:
        """Log a warning, or a debug message if the same outage continues."""
        level = logging.WARNING if self.is_news else logging.DEBUG
        log.log(level, "%s; next try in %.0f s", self.reason, self.retry_s)


@dataclass(frozen=True)
class Received:
    """A message that arrived."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class TooLarge:
    """A message was not sent: its packet of ``size`` bytes exceeds the broker's ``max_packet_bytes``."""

    topic: str
    size: int
    max_packet_bytes: int

    def __str__(self) -> str:
        return (
            f"not sent to {self.topic}: a message of {self.size} bytes; the broker accepts "
            f"{self.max_packet_bytes} (Mosquitto: max_packet_size)"
        )


LinkEvent = Connected | Disconnected | Received | TooLarge


@dataclass
class LinkCounters:
    """Counts of messages and of bytes. Bytes are TCP payload, as counted by the kernel."""

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    connections: int = 0
    oversize: int = 0


class MqttLink:
    """A link to the broker. It runs in a single thread, which calls ``step``.

    ``subscriptions`` are made on every connection, and may change between connections. ``will``, if given,
    is called before every connection and returns the (topic, payload) of the MQTT will. With ``retain`` the
    broker keeps the will and all messages. ``admit`` decides by topic and payload whether to keep an
    arriving message; others are dropped at once. ``reconnect`` decides how long to wait between
    connections.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        subscriptions: tuple[str, ...],
        will: Callable[[], tuple[str, bytes]] | None = None,
        reconnect: Reconnect | None = None,
        retain: bool = False,
        admit: Callable[[str, bytes], bool] = lambda topic, payload: True,
    ) -> None:
        self.settings = settings
        self._admit = admit
        self._retain = retain
        self.counters = LinkCounters()
        self._host, self._port, self._tls, self._path = settings.endpoint()
        self.subscriptions = subscriptions
        self._will = will
        self.reconnect = reconnect or Reconnect(np.random.default_rng())
        self._client: paho.Client | None = None
        self._events: list[LinkEvent] = []
        self._up = False
        self._random = secrets.token_hex(16)
        self._unwritten = self._failures = 0
        self._unconfirmed = set[int | None]()  # pending requests to subscribe or unsubscribe
        self._leaving: int | None = None
        self._deaf_at: float | None = None
        self._patience_s = DEAF_S
        self._retry_at = self._serve_at = self._connack_by = 0.0
        self._version = MQTTProtocolVersion.MQTTv5
        self._answered = self._heard = self._refuses_5 = False
        self._max_packet = MAX_PACKET_BYTES
        self._refused = self._alert = ""
        self._closed_sent = self._closed_received = 0

    @property
    def up(self) -> bool:
        """True if the broker has accepted the current connection."""
        return self._up

    @property
    def room(self) -> int:
        """The number of additional frames that the link accepts now."""
        return max(0, WINDOW - self._unwritten) if self._up else 0

    def fileno(self) -> int | None:
        """Return the socket to wait on, or None."""
        sock = self._client.socket() if self._client else None
        return None if sock is None else sock.fileno()

    def wants_write(self) -> bool:
        """Return True if bytes are waiting to be written to the socket."""
        return self._client is not None and self._client.want_write()

    def timer(self) -> float:
        """Return when ``step`` must run even if the socket is silent (``time.monotonic``)."""
        if self._events:  # since the last step, a send has failed and closed the connection
            return 0.0
        return self._retry_at if self._client is None else self._serve_at

    def step(self) -> list[LinkEvent]:
        """Connect if it is time, read, write, and keep alive. Returns the events in order."""
        now = time.monotonic()
        if self._client is None:
            if now >= self._retry_at:
                self._connect(now)
        else:
            self._serve(self._client, now)
        self._serve_at = now + SERVE_S
        events, self._events = self._events, []
        return events

    def send(self, topic: str, payload: bytes, confirmed: bool = False) -> None:
        """Send one message, or drop it if there is no connection.

        If the broker refuses a ``confirmed`` message, the connection ends; only a doctor uses that.
        """
        if self._client is None or not self._up:
            return
        if (size := packet_bytes(topic, payload)) > self._max_packet:
            self.counters.oversize += 1  # the broker would disconnect us, at every retry
            self._events.append(TooLarge(topic, size, self._max_packet))
            return
        if self._deaf_at is None and not self._heard:
            self._deaf_at = time.monotonic() + self._patience_s
        self._unwritten += 1
        self.counters.frames_sent += 1
        self._client.publish(topic, payload, int(confirmed), self._retain)

    @property
    def is_settled(self) -> bool:
        """True if the broker has confirmed our subscriptions, so everything it sent before has arrived."""
        return self._up and not self._unconfirmed

    def subscribe(self, topic: str) -> None:
        """Subscribe to one more topic until this connection ends."""
        if self._client is not None and self._up:
            self._unconfirmed.add(self._client.subscribe(topic)[1])

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        if self._client is not None and self._up:
            self._unconfirmed.add(self._client.unsubscribe(topic)[1])

    def close(self) -> None:
        """Close cleanly, after everything sent has arrived; the will is not sent.

        A broker answers in order. Once it has confirmed that we unsubscribed, it has read everything that
        we sent before, and sends nothing more. Closing a socket with unread bytes would reset the
        connection, and the broker would lose what it has not read yet.
        """
        deadline = time.monotonic() + CLOSE_S
        if self._client is not None and self._up and self.subscriptions:
            self._leaving = self._client.unsubscribe(list(self.subscriptions))[1]
        while self._client is not None and (self._unwritten or self._leaving is not None):
            if (now := time.monotonic()) > deadline:
                break
            self._serve(self._client, now)
            time.sleep(0.005)
        if self._client is not None:
            self._client.disconnect()
            self._drop("closed", Ended.HEARD)
        self._events.clear()

    def _connect(self, now: float) -> None:
        try:
            client = self._new_client()
        except ConfigError as exc:  # the certificate files may be in the middle of a renewal
            if not self.counters.connections:
                raise
            self._drop(str(exc), Ended.UNANSWERED)
            return
        self._connack_by = now + CONNECT_TIMEOUT_S
        self._answered, self._heard, self._alert = False, False, ""
        options: dict[str, Any] = {}
        if self._version == MQTTProtocolVersion.MQTTv5:
            limits = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            limits.MaximumPacketSize = MAX_PACKET_BYTES
            options = {"clean_start": True, "properties": limits}
        try:
            self._client = client
            client.connect(self._host, self._port, KEEPALIVE_S, **options)
        except (OSError, ValueError) as exc:  # ssl.SSLError and socket.gaierror are OSErrors
            why = tls.unreachable(exc, self._tls, guesses=not self.counters.connections)
            self._drop(f"cannot reach {self.settings.url}: {why}", tls.ended(exc))

    def _new_client(self) -> paho.Client:
        old = self._version != MQTTProtocolVersion.MQTTv5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"{self.settings.name}-{self._random}",
            clean_session=True if old else None,
            protocol=self._version,
            transport="tcp" if self._path is None else "websockets",
            reconnect_on_failure=False,
        )
        if self._path is not None:
            client.ws_set_options(self._path)
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.username_pw_set(self.settings.username, self.settings.password)
        if self._tls:
            own = self.settings
            files = tls.Files(own.ca_file, own.cert_file, own.key_file)
            tls.load(client.tls_set, files, own.client_pem)
        if self._will is not None:
            topic, payload = self._will()
            client.will_set(topic, payload, retain=self._retain)
        client.on_log = self._on_log
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_socket_close = self._on_socket_close
        return client

    def _serve(self, client: paho.Client, now: float) -> None:
        for _ in range(READS_PER_STEP):
            if self._client is not client or not is_readable(client.socket()):
                break
            client.loop_read()
        if self._client is client and client.want_write():
            client.loop_write()
        if self._client is client:
            client.loop_misc()
        if self._client is client and not self._up and now > self._connack_by:
            self._try_other_version()
            reason = f"{self.settings.url} accepted the connection but did not answer"
            self._drop(reason, Ended.UNANSWERED)
        if self._client is client and self._deaf_at is not None and now > self._deaf_at:
            self._drop_deaf()

    def _drop_deaf(self) -> None:
        """Drop a connection on which nothing arrives, and retry soon, because the broker was reachable."""
        reason = f"{self.settings.url}: heard nothing for {self._patience_s:.0f} s, although we sent data"
        self._patience_s = min(2 * self._patience_s, DEAF_MAX_S)
        self._random = secrets.token_hex(16)
        self._drop(reason, Ended.HEARD)

    def _try_other_version(self) -> None:
        """Switch between MQTT 5 and 3.1.1. A broker without MQTT 5 may disconnect or stay silent."""
        old = self._version != MQTTProtocolVersion.MQTTv5
        self._version = MQTTProtocolVersion.MQTTv5 if old else MQTTProtocolVersion.MQTTv311

    def _drop(self, reason: str, ended: Ended) -> None:
        """Drop the connection and decide when to reconnect."""
        client, self._client = self._client, None
        if client is not None:
            self._count(client.socket())
            client.on_disconnect = client.on_socket_close = None
            client.disconnect()
            client.loop_misc()
        if self._up and not self._refuses_5:
            # The disconnect that made us try 3.1.1 may have been a restart of a broker behind a proxy.
            self._version = MQTTProtocolVersion.MQTTv5
        self._up, self._unwritten, self._leaving, self._deaf_at = False, 0, None, None
        now = time.monotonic()
        delay = self.reconnect.wait_s(ended, now)
        self._retry_at = now + delay
        self._events.append(Disconnected(reason, delay, self.reconnect.is_news(reason, now)))

    def _on_connect(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._answered, client.on_log = True, None
        if reason.is_failure:
            if str(reason) in UNSUPPORTED_VERSION:
                self._version, self._refuses_5 = MQTTProtocolVersion.MQTTv311, True
            self._refused = f"{self.settings.url} refused {self.settings.name!r}: {reason}"
            return
        self._up = True
        self.counters.connections += 1
        limit = getattr(properties, "MaximumPacketSize", None)
        self._max_packet = min(limit or MAX_PACKET_BYTES, MAX_PACKET_BYTES)
        self._unconfirmed = {client.subscribe(topic)[1] for topic in self.subscriptions}
        self._events.append(Connected(self._max_packet))

    def _on_log(self, client: object, userdata: object, level: int, text: str) -> None:
        """Remember the TLS alert that paho has received, because paho itself only logs it."""
        if level == paho.MQTT_LOG_ERR:
            self._alert = self._alert or tls.alert_in(text)

    def _on_subscribe(
        self,
        client: paho.Client,
        userdata: object,
        mid: int,
        reasons: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        self._unconfirmed.discard(mid)
        for reason in reasons:
            if reason.is_failure:
                self._refused = f"{self.settings.url} refused a subscription: {reason}"
                client.disconnect()

    def _on_unsubscribe(self, client: object, userdata: object, mid: int, *_: object) -> None:
        self._unconfirmed.discard(mid)
        if mid == self._leaving:
            self._leaving = None

    def _on_disconnect(
        self,
        client: paho.Client,
        userdata: object,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if self._client is client:
            refused, self._refused = self._refused, ""
            ended = Ended.HEARD if self._heard else Ended.TURNED_AWAY
            if not self._answered and not self._alert:
                self._try_other_version()
                ended = Ended.UNANSWERED
            self._drop(refused or f"{self.settings.url}: {self._hung_up(str(reason))}", ended)

    def _hung_up(self, reason: str) -> str:
        """Explain why a connection ended. Guesses if no reason was given and no connection ever worked."""
        if reason != "Unspecified error":
            return reason
        hint = ""
        if self._alert in tls.REFUSED:
            return f"the broker refuses us: {tls.REFUSED[self._alert]}"
        if not self.counters.connections:  # once a connection has worked, the guess is wrong
            hint = " (does it expect TLS, mqtts?)"
            if self._tls:
                own = self.settings.client_pem or self.settings.cert_file
                hint = "" if own else " (does it require a client certificate, broker.cert_file?)"
        return f"the broker closed the connection{hint}"

    def _on_message(self, client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:  # paho decodes the topic only here; all of our topics are UTF-8
            return
        self._heard, self._deaf_at, self._patience_s = True, None, DEAF_S
        self.counters.frames_received += 1
        payload = bytes(message.payload)
        if self._admit(topic, payload):
            self._events.append(Received(topic, payload))

    def _on_publish(
        self,
        client: paho.Client,
        userdata: object,
        mid: int,
        reason: ReasonCode,
        properties: Properties,
    ) -> None:
        self._unwritten = max(0, self._unwritten - 1)
        if reason.is_failure:
            self._refused = f"{self.settings.url} refused a message: {reason}"
            client.disconnect()

    def _on_socket_close(self, client: paho.Client, userdata: object, sock: Any) -> None:
        self._count(sock)
        if self._tls and not self._answered:
            self._alert = self._alert or tls.last_alert(sock)

    def measure(self) -> LinkCounters:
        """Return the counters, including the bytes of the open socket."""
        counters = self.counters
        sock = self._client.socket() if self._client else None
        sent, received = (0, 0) if sock is None else socket_bytes(sock)
        counters.bytes_sent = self._closed_sent + sent
        counters.bytes_received = self._closed_received + received
        return counters

    def _count(self, sock: Any) -> None:
        """Add the bytes of a socket that is about to close."""
        if sock is not None:
            sent, received = socket_bytes(sock)
            self._closed_sent += sent
            self._closed_received += received
