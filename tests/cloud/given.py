"""A strategy that assigns what a test says, by the name of the device, and one that selects."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol.wire.work import UpdateSelection, Work

NAME = "tests.cloud.given:Given"
SELECTING = "tests.cloud.given:Selecting"
Init = Callable[[Context], State]
Plan = Callable[[Context, ClientModel], Assignment]
# What the run begins with, if it is not the bundle's model.
INITS: list[Init] = []
# What each device gets; whoever is not here gets the global model.
PLANS: dict[str, Plan] = {}
# The client models and updates that were looked at, and the groups that the next round has.
SEEN: list[ClientModel] = []
UPDATES: list[Update] = []
GROUPS: dict[str, tuple[str, ...]] = {}


def clear() -> None:
    for said in (INITS, PLANS, SEEN, UPDATES, GROUPS):
        said.clear()


def assigned(**fields: Any) -> Assignment:
    """An assignment with these fields; those that only ``Work`` has go into its ``work``."""
    of_work = set(Work.__struct_fields__) - Assignment.__dataclass_fields__.keys()
    asked = {name: fields.pop(name) for name in of_work & fields.keys()}
    return Assignment(**fields, work=Work(**asked)) if asked else Assignment(**fields)


class Given(Strategy, frozen=True):
    name: ClassVar[str] = "given"

    def init(self, context: Context) -> State:
        return INITS[-1](context) if INITS else super().init(context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        SEEN.append(client)
        plan = PLANS.get(client.device)
        return Assignment() if plan is None else plan(context, client)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        UPDATES[:] = list(updates)
        again = [update.device for update in updates]
        assert again == [update.device for update in UPDATES]
        return context.replaced(context.theta, groups=dict(GROUPS))


class Selecting(FedAvg, frozen=True):
    """FedAvg of the elements that each device selects, so that masks have a context."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        return Assignment(work=Work(select=UpdateSelection()))


class Miscoded(Strategy, frozen=True):
    """Says how its patches are coded, but not as a value coding."""

    name: ClassVar[str] = "miscoded"

    @property
    def patch_values(self) -> Any:
        return "int8"
