"""The link of a conformance run, and a proxy that can disconnect a client from the broker."""

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path

from sedge_cloud.config import CloudConfig, broker_settings
from sedge_cloud.store.opening import open_store
from sedge_conformance.acts import play
from sedge_conformance.stage import Cut, Finding, Stage, StartModel, Wait
from sedge_conformance.stage import Step as StageStep
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.loop import Loop, lock_folder
from sedge_protocol.host.mqtt import (
    BrokerSettings,
    Connected,
    Disconnected,
    MqttLink,
    Received,
    TooLarge,
)
from sedge_protocol.host.privileges import act_as_owner, as_caller
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.keys import DeviceKeys

ACCEPT_RETRY_S = 0.1


class Player:
    """Runs a stage over a real link, as a station of ``Loop``."""

    def __init__(self, stage: Stage, settings: BrokerSettings, gate: "Gate | None") -> None:
        self.stage = stage
        self.link = MqttLink(settings, (stage.topic,))
        self._gate = gate
        self._begun = False
        self._log = logging.getLogger("sedge.conformance")

    def fileno(self) -> int | None:
        """Return the file descriptor of the link's socket, or None if there is none."""
        return self.link.fileno()

    def wants_write(self) -> bool:
        """Return True if the link has bytes to write."""
        return self.link.wants_write()

    def timer(self) -> float:
        """Return when to call ``step`` next."""
        at = self.stage.timer()
        return self.link.timer() if at is None else min(at, self.link.timer())

    def step(self) -> None:
        """Pass received frames to the stage, and continue its script if a wait has ended."""
        for event in self.link.step():
            now = time.monotonic()
            match event:
                case Connected():
                    if not self._begun:
                        self._begun = True
                        self._do(self.stage.begin(now))
                case Disconnected():
                    event.log(self._log)
                case Received():
                    self._do(self.stage.receive(event.topic, event.payload, now))
                case TooLarge():
                    self._log.warning("%s", event)
        if self._begun:
            self._do(self.stage.poll(time.monotonic()))

    def close(self) -> None:
        """Close the link to the broker."""
        self.link.close()

    def _do(self, steps: Iterable[StageStep]) -> None:
        for step in steps:
            match step:
                case Send():
                    self.link.send(step.topic, step.payload)
                case Cut():
                    if self._gate is not None:
                        self._gate.cut()
                case Wait():
                    pass


class Gate:
    """A proxy to the broker that can disconnect clients. It listens on all network interfaces."""

    def __init__(self, port: int, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._open: set[socket.socket] = set()
        self._closed = False
        try:
            self._listener = socket.create_server(("", port))
        except (OSError, OverflowError) as exc:
            raise ConfigError("gate", port, f"a free port, 1024 to 65535 ({exc})") from exc
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """Close every connection. New ones are accepted."""
        for end in list(self._open):
            self._hang_up(end)

    def close(self) -> None:
        """Close every connection and accept no more."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes ``accept``; ``close`` would not
        self._listener.close()
        self.cut()

    def _listen(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed, or the client has gone, or out of file handles
                time.sleep(ACCEPT_RETRY_S)
                continue
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self._broker)
        except OSError:
            client.close()
            return
        other = {client: broker, broker: client}
        self._open |= other.keys()
        try:
            while True:
                for end in select.select(list(other), [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    other[end].sendall(data)
        except (OSError, ValueError):  # closed by the other thread
            return
        finally:
            for end in other:
                self._hang_up(end)

    def _hang_up(self, end: socket.socket) -> None:
        self._open.discard(end)
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def conform(
    cloud: CloudConfig,
    device: str,
    bundle: Path,
    gate_port: int | None,
    tell: Callable[[Finding], None],
) -> bool:
    """Play every act against an enrolled device's client. Returns True if the client keeps every rule.

    The stage takes the place of the coordinator, which must not be running. Raises ``ConfigError`` if the
    device is not enrolled or the bundle has frozen data, and ``StorageError`` or ``CodecError`` if the
    bundle cannot be read.
    """
    folder = act_as_owner(Path(cloud.state_dir))
    with as_caller():
        model = StartModel(*load(bundle))
    if model.bundle.frozen is not None:
        expected = "one without, because no act covers that extension"
        raise ConfigError("bundle", f"{bundle} with frozen data", expected)
    settings = broker_settings(cloud)
    with (
        lock_folder(folder),
        closing(open_store(cloud)) as store,
        store.serving(),
        closing(Loop()) as loop,
        ExitStack() as stack,
    ):
        row = next(
            (row for row in store.devices() if row.device == device and not row.revoked), None
        )
        if row is None:
            raise ConfigError("device", device, "an enrolled device (`sedge-cloud device add`)")
        incarnation = store.next_incarnation(int(time.time()))
        acts = play(model, with_cut=gate_port is not None)
        stage = Stage(cloud.fleet, device, DeviceKeys.of(row.secret), incarnation, acts)
        gate = None
        if gate_port is not None:
            host, port, *_ = settings.endpoint()
            gate = stack.enter_context(closing(Gate(gate_port, (host, port))))
        player = stack.enter_context(closing(Player(stage, settings, gate)))
        loop.stop_on_signals()
        told = 0

        def finished() -> bool:
            nonlocal told
            for place, finding in enumerate(stage.findings[told:], start=told):
                if finding not in stage.findings[:place]:  # a repeated finding is printed once
                    tell(finding)
            told = len(stage.findings)
            return stage.done

        loop.run([player], finished)
        if loop.interrupted:
            raise KeyboardInterrupt
    return stage.done and all(finding.good for finding in stage.findings)
