"""amqtt, in this process, for a demonstration on a machine that cannot have Mosquitto.

It speaks MQTT 3.1.1 only, moves a fifth of the bytes and, for anonymous clients, forgets what a client
that is offline should get: Sedge's own receipts make up for that. It runs in a thread with an event
loop of its own and listens on the loopback interface alone. Written against amqtt 0.12.
"""

import asyncio
import contextlib
import logging
import shutil
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from amqtt.broker import Broker as Amqtt
from amqtt.errors import BrokerError, PluginError

from sedge_emulate.broker.mosquitto import LOOPBACK, on_free_port
from sedge_protocol.errors import LinkError

_LOGGERS = ("amqtt", "transitions")
_START_S = 10.0
_STOP_S = 5.0


class AmqttBroker:
    """An amqtt broker on a free port, for the time of a ``with``.

    The port is ``wanted`` where that one is free. Entering raises ``LinkError`` where it does not start,
    and sets ``port`` and ``log_path``.
    """

    kind: Literal["amqtt"] = "amqtt"
    port: int
    log_path: Path

    def __init__(self, wanted: int | None = None) -> None:
        self._wanted = wanted
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._log: logging.FileHandler | None = None

    @property
    def url(self) -> str:
        """``mqtt://127.0.0.1:port``; the same before and after a restart."""
        return f"mqtt://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Self:
        self.log_path = Path(tempfile.mkdtemp(prefix="sedge-broker-")) / "amqtt.log"
        self._divert_log()
        try:
            self.port = on_free_port(self._start, self._wanted)
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._clean_up()

    def kill(self) -> None:
        """End the broker and cut every connection; nothing where it is down already."""
        if self._thread is None or self._loop is None or self._end is None:
            return
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._thread = None

    def restart(self) -> None:
        """End the broker where it runs, and start it, empty, on the same port."""
        self.kill()
        self._start(self.port)

    def _start(self, port: int) -> None:
        outcome: list[Exception] = []
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(port, started, outcome)),
            name="amqtt",
            daemon=True,
        )
        self._thread.start()
        if not started.wait(_START_S):
            raise LinkError(f"amqtt on port {port}: not started after {_START_S:.0f} s")
        if outcome:
            self._thread.join()
            self._thread = None
            raise LinkError(f"amqtt on port {port}: {outcome[0]}") from outcome[0]

    async def _serve(self, port: int, started: threading.Event, outcome: list[Exception]) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        settings = {
            "listeners": {"default": {"type": "tcp", "bind": f"{LOOPBACK}:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
        try:
            broker = Amqtt(settings)
            await broker.start()
        except (BrokerError, PluginError) as exc:
            outcome.append(exc)
            return
        finally:
            started.set()
        await self._end.wait()
        # Bounded: with a client in the middle of a packet its shutdown may wait for ever.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(broker.shutdown(), _STOP_S)

    def _divert_log(self) -> None:
        """Send what amqtt has to say to the log file and nowhere else."""
        self._log = logging.FileHandler(self.log_path)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._log)
            logging.getLogger(name).propagate = False

    def _clean_up(self) -> None:
        for name in _LOGGERS:
            if self._log is not None:
                logging.getLogger(name).removeHandler(self._log)
            logging.getLogger(name).propagate = True
        if self._log is not None:
            self._log.close()
        shutil.rmtree(self.log_path.parent)
