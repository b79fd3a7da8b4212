"""What an operator may do from the status page: the command line's own verbs, each after a confirmation.

The service runs as a user of its own, which under its unit may neither edit the broker's passwords nor have
the broker reload them. What it could not do the page says, with the command that does it as root.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sedge_cloud.admin.revocation import Revocation, revoke_device
from sedge_cloud.admin.runs import delete_run, stop_run
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import Fleet
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError


@dataclass(frozen=True)
class Action:
    """One verb and the run or device that it is for; ``text`` says what it does.

    ``do`` returns what became of a revocation, and None where nothing can be left to do.
    """

    verb: str
    name: str
    text: str
    do: Callable[[Store, CloudConfig], Revocation | None]


def find(verb: str, name: str, facts: Fleet) -> Action:
    """The action with this verb. Raises ``ConfigError`` for a verb, run or device that there is not."""
    if verb == "stop":
        run = facts.run(name)
        if run is None or run.status != "running":
            raise ConfigError("name", name, "the name of a running run")
        text = "The run ends after the updates that it already has. Its models and receipts stay."
        return Action(verb, name, text, lambda store, cloud: stop_run(store, name))
    if verb == "delete":
        run = facts.run(name)
        if run is None or run.status == "running":
            raise ConfigError("name", name, "the name of a run that has ended")
        text = "Its rounds, its models and what it knows of each device are gone for good."
        return Action(verb, name, text, lambda store, cloud: _delete(store, name))
    if verb == "revoke":
        device = next((device for device in facts.devices if device.device == name), None)
        is_revoked = device is not None and device.state == "revoked"
        if is_revoked or (device is None and not facts.is_large):  # otherwise the store knows
            raise ConfigError("name", name, "the id of a device that is not revoked")
        text = "The coordinator no longer listens to this device until `device reissue`."
        return Action(verb, name, text, lambda store, cloud: revoke_device(store, cloud, name))
    raise ConfigError("verb", verb, "stop, delete or revoke")


def _delete(store: Store, name: str) -> None:
    delete_run(store, name)
