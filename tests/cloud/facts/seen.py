"""A coordinator on the bench together with its recorder and a reader: what an operator would see."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cloud.helper import BEGUN, CONFIG, FLEET, LAYOUT, Cloud, a_hello, small_update

from sedge_cloud.config import RunConfig
from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.records import Fleet
from sedge_cloud.recorder import Recorder
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.messages import Goodbye


class Seen:
    """A cloud whose recorder is fed as the service feeds it."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig | None = CONFIG,
        devices: Sequence[str] = "abc",
        layout: Layout = LAYOUT,
        init: Theta | None = None,
    ) -> None:
        self._begun = time.time() - BEGUN
        self.cloud = Cloud(
            folder, config, devices, layout=layout, init=init, wall=lambda now: self._begun + now
        )
        self.state = folder / "state"
        self.restart()
        self.reader = Reader(FLEET, self.state, self.cloud.store)
        self._fed = 0

    def wall(self) -> float:
        """The clock on the wall, which goes as the cloud's own does."""
        return self._begun + self.cloud.now

    def restart(self) -> None:
        self.recorder = Recorder(self.cloud.core, self.cloud.wall)
        self.recorder.link(True, self.cloud.now)

    def record(self) -> None:
        """Let the recorder write what has happened since."""
        for effect in self.cloud.effects[self._fed :]:
            if isinstance(effect, Note) and effect.level >= logging.ERROR:
                self.recorder.error(effect.text, self.cloud.now)
        self._fed = len(self.cloud.effects)
        self.cloud.now += 2
        self.recorder.poll(self.cloud.now)

    def facts(self, later: float = 0.0, alive: bool = True) -> Fleet:
        """The facts, read so many seconds from now; ``alive``: the service has gone on meanwhile."""
        self.record()
        if alive and later:
            before, self.cloud.now = self.cloud.now, self.cloud.now + later
            self.recorder.poll(self.cloud.now)
            facts = self.reader.read(self.wall())
            self.cloud.now = before
            return facts
        return self.reader.read(self.wall() + later)

    def found(self, later: float = 0.0, alive: bool = True) -> dict[tuple[str, str], str]:
        """What is wrong: texts by code and subject."""
        return {(p.code, p.subject): p.text for p in self.facts(later, alive).problems}

    def gone(self, name: str) -> None:
        self.cloud.say(name, Goodbye(a_hello(name).nonce))

    def round(self, *names: str) -> None:
        """These devices answer their orders, and the round may close."""
        for name in names:
            self.cloud.offer(name, small_update(self.cloud.order(name), seed=ord(name[0])))
        self.cloud.poll()
        self.record()
