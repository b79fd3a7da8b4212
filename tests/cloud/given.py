"""A strategy that assigns what a test says, by the name of the device, and one that selects."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Selection, Training

NAME = "tests.cloud.given:Given"
SELECTING = "tests.cloud.given:Selecting"
Init = Callable[[Layout, Theta], State]
Plan = Callable[[State, Memory, Training], Assignment]
# What the run begins with, if it is not the bundle's model.
INITS: list[Init] = []
# What each device gets; whoever is not here gets the global model.
PLANS: dict[str, Plan] = {}
# The memories and updates that were looked at, and the groups that the next round has.
SEEN: list[Memory] = []
UPDATES: list[Update] = []
GROUPS: dict[str, tuple[str, ...]] = {}


def clear() -> None:
    """Forget what a test has said."""
    for said in (INITS, PLANS, SEEN, UPDATES, GROUPS):
        said.clear()


@dataclass(frozen=True)
class Given:
    """See above."""

    @property
    def name(self) -> str:
        return "given"

    def init(self, layout: Layout, theta: Theta) -> State:
        return INITS[-1](layout, theta) if INITS else State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        SEEN.append(memory)
        plan = PLANS.get(memory.device)
        return Assignment() if plan is None else plan(state, memory, training)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        UPDATES[:] = list(updates)
        again = [update.device for update in updates]
        assert again == [update.device for update in UPDATES]
        return replace(state, round=state.round + 1, groups=dict(GROUPS))


@dataclass(frozen=True)
class Selecting(FedAvg):
    """FedAvg of the elements that each device selects, so that masks have a context."""

    @property
    def name(self) -> str:
        return "selecting"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        return Assignment(select=Selection())
