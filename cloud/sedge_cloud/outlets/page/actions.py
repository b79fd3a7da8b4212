"""What an operator may do from the status page: command-line actions, each after a confirmation.

The service runs as a separate user. Its systemd unit does not let it edit the broker's passwords, or make
the broker reload them. The page shows any step that the service could not do, and the command with which
root can do it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlencode

from sedge_cloud.admin import prepared
from sedge_cloud.admin.policies import read_policy
from sedge_cloud.admin.revocation import revoke_device
from sedge_cloud.admin.runs import delete_run, resume_run, start_run, stop_run
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import Fleet, RunFacts
from sedge_cloud.figures.numbers import quantity
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError

# Performs an action. The last argument is the text entered in the form. Only a ``Revocation`` that it
# returns matters: it may leave work to the operator.
Do: TypeAlias = Callable[[Store, CloudConfig, str], object]


@dataclass(frozen=True)
class Action:
    """One verb, and the run or device that it applies to.

    ``text`` says what the action does, and ``asks`` names the input field in its form, if any. ``ends`` is
    True if no other action on the page can undo it.
    """

    verb: str
    name: str
    text: str
    do: Do
    asks: str = ""
    ends: bool = False

    @property
    def back(self) -> str:
        """Return the URL of the page to return to."""
        on_device = self.verb in ("pause", "resume", "tag", "revoke")
        return f"device?{urlencode({'name': self.name})}" if on_device else "./"


def find(verb: str, name: str, facts: Fleet) -> Action:
    """Return the action with this verb. Raises ``ConfigError`` for an unknown verb, run or device."""
    if verb not in _VERBS:
        raise ConfigError("verb", verb, f"one of {', '.join(_VERBS)}")
    return _VERBS[verb](name, facts)


def _stop(name: str, facts: Fleet) -> Action:
    run = facts.run(name)
    if run is None or run.status != "running":
        raise ConfigError("name", name, "the name of a running run")
    return Action(
        "stop", name, _stopping(run), lambda store, cloud, said: stop_run(store, name), ends=True
    )


def _stopping(run: RunFacts) -> str:
    """Explain what would happen if the run were stopped now."""
    text = f"{run.closed_rounds} of {run.total_rounds} rounds are closed; the others will not run."
    it = run.open
    if it is not None and it.state == "open":
        left = it.cohort - it.updates - len(it.declined) - len(it.rejected)
        text += (
            f" Round {it.round} is open with {quantity(it.updates, 'update')}, which are kept. Devices"
            f" that have not answered: {left}; their orders are cancelled."
        )
    return (
        f"{text} Its models and receipts are kept, and devices keep what they have learned."
        " It can be continued later."
    )


def _start(name: str, facts: Fleet) -> Action:
    if facts.run(name) is not None:
        raise ConfigError("name", name, "a name that no run has yet")
    config = prepared.prepared_config(Path(facts.disk.path), name)
    text = (
        f"{config.strategy}, {quantity(config.num_rounds, 'round')} of training. The bundle's"
        " programs are checked now; the run begins as soon as its devices are online."
    )
    return Action("start", name, text, lambda store, cloud, _: _started(store, cloud, name))


def _started(store: Store, cloud: CloudConfig, name: str) -> None:
    state = Path(cloud.state_dir)
    config, folder = prepared.prepared_config(state, name), state / prepared.FOLDER / name
    policy = folder / prepared.POLICY
    sealed = read_policy(policy if policy.exists() else None, cloud.trust, name)
    start_run(store, name, folder / prepared.BUNDLE, config, policy=sealed)


def _continue(name: str, facts: Fleet) -> Action:
    run = facts.run(name)
    left = 0 if run is None else run.total_rounds - run.closed_rounds
    if run is None or run.status == "running" or left <= 0:
        raise ConfigError("name", name, "the name of a run that has ended before its last round")
    text = (
        f"It continues where it ended: {left} of its {run.total_rounds} rounds are left."
        " An open round continues with the updates that it has."
    )
    return Action("continue", name, text, lambda store, cloud, said: resume_run(store, name))


def _delete(name: str, facts: Fleet) -> Action:
    run = facts.run(name)
    if run is None or run.status == "running":
        raise ConfigError("name", name, "the name of a run that has ended")
    text = "Its rounds, its models and what it knows about each device will be lost for good."
    return Action(
        "delete", name, text, lambda store, cloud, said: delete_run(store, name), ends=True
    )


def _revoke(name: str, facts: Fleet) -> Action:
    _require_device(name, facts)
    text = "The coordinator no longer listens to this device until `device reissue`."
    return Action(
        "revoke", name, text, lambda store, cloud, _: revoke_device(store, cloud, name), ends=True
    )


def _pause(name: str, facts: Fleet) -> Action:
    _require_device(name, facts)
    text = "Rounds leave it out until it is resumed. It finishes an order that it already has."
    return Action("pause", name, text, lambda store, cloud, said: store.pause([name], time.time()))


def _resume(name: str, facts: Fleet) -> Action:
    _require_device(name, facts)
    text = "The next rounds include it again."
    return Action("resume", name, text, lambda store, cloud, said: store.resume([name]))


def _tag(name: str, facts: Fleet) -> Action:
    _require_device(name, facts)
    text = "Runs and lists select devices by their tags. KEY= removes a tag."
    return Action(
        "tag", name, text, lambda store, _, said: _tagged(store, name, said), "KEY=VALUE …"
    )


def _tagged(store: Store, name: str, said: str) -> None:
    pairs = [word.partition("=") for word in said.split()]
    if not pairs or not all(sign for _, sign, _ in pairs):
        raise ConfigError("tags", said, "KEY=VALUE pairs, separated by spaces")
    store.tag([name], {key: value for key, _, value in pairs})


def _accept(name: str, facts: Fleet) -> Action:
    _require_waiting(name, facts)
    text = "It is enrolled with its token's tags, and joins as soon as the broker has its account."
    return Action("accept", name, text, lambda store, cloud, said: store.accept_join(name))


def _refuse(name: str, facts: Fleet) -> Action:
    _require_waiting(name, facts)
    text = "It does not join. It may ask again with another token."
    return Action(
        "refuse", name, text, lambda store, cloud, said: store.refuse_join(name), ends=True
    )


def _require_device(name: str, facts: Fleet) -> None:
    device = next((device for device in facts.devices if device.device == name), None)
    is_revoked = device is not None and device.state == "revoked"
    # In a large fleet, only the store knows all devices.
    if is_revoked or (device is None and not facts.is_large):
        raise ConfigError("name", name, "the id of a device that is not revoked")


def _require_waiting(name: str, facts: Fleet) -> None:
    if not any(p.code == "device_pending" and p.subject == name for p in facts.problems):
        raise ConfigError("name", name, "the name of a device that waits to join")


_VERBS: Mapping[str, Callable[[str, Fleet], Action]] = {
    "start": _start,
    "stop": _stop,
    "continue": _continue,
    "delete": _delete,
    "revoke": _revoke,
    "pause": _pause,
    "resume": _resume,
    "tag": _tag,
    "accept": _accept,
    "refuse": _refuse,
}
