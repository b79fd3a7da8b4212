"""A fleet under a virtual clock, on a hostile link and on disks that forget.

Nothing here stands in for the product but the wire, the clock, what disks keep, and the training. A machine
is killed, or loses its power, at any call by which it changes a file or a row, and between any two effects.
Where two processes serve the fleet, one of them may stand still at such a call for longer than its lease.
``judge.py`` says what must hold.
"""

import shutil
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fleet import Crash
from tests.hunt import budgets
from tests.hunt.chance import Chance
from tests.hunt.disk import Disks
from tests.hunt.judge import Judge
from tests.hunt.link import Link
from tests.hunt.machines import DEVICES, LOOK_S, RUN, Device, Machine, Process, secret_of
from tests.hunt.timeline import EPOCH, Timeline
from tests.hunt.training import LAYOUT

from sedge_cloud import company as companies
from sedge_cloud.events import RoundClosed
from sedge_cloud.processes import membership
from sedge_cloud.store.database import Store
from sedge_cloud.store.sqlite import Sqlite
from sedge_edge.agent import StartJob
from sedge_edge.jobs.job import Job
from sedge_edge.rounds import state as agent_state
from sedge_protocol.errors import StorageError
from sedge_protocol.host import blobs as blob_files
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.effects import Send, Subscribe, Unsubscribe
from sedge_protocol.wire.keys import DeviceKeys

FAULTS_UNTIL_S, ENDS_UNTIL_S = 120.0, 4000.0
REBOOTS_AFTER_S = TRAINS_FOR_S = 0.5


class World:
    """A fleet on a copy of the folder that ``lay`` made, served by so many ``processes``."""

    def __init__(self, folder: Path, laid: Path, chance: Chance, processes: int = 1) -> None:
        shutil.copytree(laid, folder, dirs_exist_ok=True)
        self._folder, self.chance, self.time = folder, chance, Timeline()
        self.trace: list[str] = []
        self._starts = self._depth = 0
        self._acting: Machine | None = None
        keys = {name: DeviceKeys.of(secret_of(name)) for name in DEVICES}
        self.judge = judge = Judge(RUN, LAYOUT, keys, lambda: self.now)
        self.disks = Disks(lambda: EPOCH + self.now, self._called)
        bundle, _ = bundles.load(folder / "bundle")
        self.devices = [
            Device(name, folder / name, self.time, judge, bundle, chance.seed) for name in DEVICES
        ]
        self.processes = [
            Process(f"cloud{i}", folder / "cloud", self.time, judge, processes > 1)
            for i in range(processes)
        ]
        self._machines: list[Machine] = [*self.processes, *self.devices]
        self.link = Link(self._machines, self.time, chance, judge, self._act)

    @property
    def now(self) -> float:
        return self.time.now

    @contextmanager
    def used(self) -> Generator["World"]:
        """The world's clock and disks in place of this machine's."""
        clock = SimpleNamespace(time=lambda: EPOCH + self.now, monotonic=lambda: self.now)
        with pytest.MonkeyPatch.context() as patch, self.disks.used():
            patch.setattr(Sqlite, "clock", property(lambda db: repr(EPOCH + self.now)))
            patch.setattr(companies, "time", clock)
            patch.setattr(blob_files, "time", clock)
            # What of a file survives is drawn by its name, temporary files included.
            numbers = count()
            names = SimpleNamespace(token_hex=lambda _: f"{next(numbers):08x}")  # pyright: ignore
            patch.setattr(blob_files, "secrets", names)
            # All processes of the simulation have this one's pid.
            patch.setattr(membership, "has_ended", lambda process, mine: False)  # pyright: ignore
            # A device that dies in three starts of one job declines it, which is another ending.
            patch.setattr(agent_state, "MAX_STARTS", 10**6)
            try:
                for machine in self._machines:
                    self._boot(machine)
                yield self
            finally:
                self._acting = None
                for process in self.processes:
                    process.close()

    # Time.

    def run(self) -> None:
        """Let time pass until the run has ended, and judge it."""
        while not self._ended():
            self.judge.require("I8", self.now < ENDS_UNTIL_S, "the run has not ended")
            self.turn()
        self.chance.is_over = True
        # That the second process takes its shards interrupts, too.
        self.judge.at_end(self.store, len(self.chance.struck) + len(self.processes) - 1)
        for device in self.devices:
            budgets.device(self.judge.require, device, self.now)
        for process in self.processes:
            budgets.process(self.judge.require, process)

    def turn(self) -> None:
        """Let time pass to what comes next."""
        self.chance.is_over |= self.now >= FAULTS_UNTIL_S
        due = [(_due(machine), machine) for machine in self._machines if machine.runs]
        first = min((at for at, _ in due), default=self.now + LOOK_S)
        first = min(max(first, self.now + 0.01), self.now + LOOK_S)
        if self.time.act_until(first):
            return
        for at, machine in due:
            if at <= first:
                self._act(machine, machine.step)

    def restart(self, machine: Machine) -> None:
        machine.end()
        self._boot(machine)

    @property
    def store(self) -> Store:
        """The coordinator's, as a process that is up has it open."""
        return next(process.store for process in self.processes if process.up)

    def _ended(self) -> bool:
        """Whether the store says so, and every device knows what became of its updates."""
        if not all(machine.runs for machine in self._machines):
            return False
        states = [device.agent.state for device in self.devices]
        if any(state.outbox or state.orders for state in states):
            return False
        return self.store.runs()[0].status != "running"

    # What machines do.

    def _boot(self, machine: Machine) -> None:
        if machine.up:
            return
        self._starts += 1
        machine.up = True
        self._act(machine, partial(machine.begin, self._starts))

    def _act(self, machine: Machine, call: Callable[[], Sequence[object]]) -> None:
        """Let a machine do something, and what follows from it; it may end in the middle."""
        if not machine.runs:
            return
        before, self._acting, life = self._acting, machine, machine.life
        machine.due_at = None
        try:
            for effect in call():
                self._called(between=True)
                self._carry_out(machine, effect)
        except (Crash, StorageError, sqlite3.ProgrammingError) as exc:
            self._acting = None
            if machine.life != life:
                return  # it was gone already, and its database closed
            if isinstance(exc, sqlite3.ProgrammingError):
                raise
            self._note(f"{machine.name} ends: {str(exc).replace(f'{self._folder}/', '')}")
            if exc.args == ("power",):
                self._power_fails(machine)
            self._end(machine)
        finally:
            self._acting = before

    def _carry_out(self, machine: Machine, effect: object) -> None:
        match effect:
            case Send():
                self.link.publish(machine, effect)
            case Subscribe() if isinstance(machine, Device):
                machine.subscriptions.add(effect.topic)
            case Unsubscribe() if isinstance(machine, Device):
                machine.subscriptions.discard(effect.topic)
            case StartJob() if isinstance(machine, Device):
                work = partial(self._work, machine, machine.life, effect.job)
                self.time.later(TRAINS_FOR_S, work)
            case RoundClosed():
                self.judge.closed(effect.summary)
            case _:
                pass

    def _work(self, device: Device, life: int, job: Job) -> None:
        if device.life == life:
            self._act(device, partial(device.work, job))

    # What befalls them.

    def _called(self, between: bool = False) -> str:
        """What happens at a call of whoever acts: it may be killed, its power fail, its disk be full."""
        who = self._acting
        if who is None:
            return ""
        place = f"{who.name} {'effect' if between else 'call'}"
        kind = self.chance.strike(place, kill=0.003, power=0.003, full=0.002, pause=0.004)
        if not kind:
            return ""
        if kind == "pause":
            self._pause(who)
            return ""
        if kind == "full":
            self._note(f"{who.name}: {kind}")
            return "" if between else kind
        self._acting = None
        raise Crash(kind)

    def _pause(self, who: Machine) -> None:
        """The process stands still where it is, while the others go on."""
        if self._depth or not isinstance(who, Process) or who.company is None:
            return
        if not who.up or who.store._db.in_transaction:
            return
        until, life = self.now + 8 + 12 * self.chance.share(f"{who.name} {self.now}"), who.life
        self._note(f"{who.name} stands still until {until:.1f} s")
        who.still, self._acting, self._depth = True, None, 1
        try:
            while self.now < until and not self.chance.is_over:
                self.turn()
        finally:
            who.still, self._depth = False, 0
        if who.life != life:
            raise Crash("it was gone meanwhile")
        self._acting = who

    def _power_fails(self, who: Machine) -> None:
        """The machine's disk is left with what it must keep, and with some of the rest."""
        place = f"power {who.name} {len(self.chance.struck)}"
        if isinstance(who, Process):
            restore = self.disks.rows_after_cut(who.folder)
            who.close()
            for other in self.processes:
                if other.up and other is not who:
                    self._end(other)
            restore()
        self.disks.cut(who.folder, self.chance, place)

    def _end(self, machine: Machine) -> None:
        machine.end()
        self.time.later(REBOOTS_AFTER_S, partial(self._boot, machine))

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.now:8.2f} s  {text}")


def _due(machine: Machine) -> float:
    """When it next wants to do something, which only what it does changes."""
    if machine.due_at is None:
        machine.due_at = machine.due()
    return machine.due_at
