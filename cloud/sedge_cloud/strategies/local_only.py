"""LocalOnly: every device trains alone and sends only metrics (papers: Local, Separate, Standalone)."""

from collections.abc import Iterable
from typing import ClassVar

from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol.wire.work import Work


class LocalOnly(Strategy, frozen=True):
    """Each device trains its own model, which starts as the run's first model."""

    name: ClassVar[str] = "local_only"

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the device's entire last model as its start, and no upload."""
        return Assignment(work=Work(keep=tuple(context.layout.by_name), upload=False))

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the global model unchanged."""
        return State(context.theta)
