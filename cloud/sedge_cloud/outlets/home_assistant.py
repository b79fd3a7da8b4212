"""Publishes the fleet's facts to its broker, so that Home Assistant discovers the fleet and its devices.

    homeassistant/device/sedge-FLEET/…/config   the entities, for Home Assistant's device discovery
    sedge/1/FLEET/facts/link                    online or offline: whether the coordinator runs
    sedge/1/FLEET/facts/fleet                   the newest run, as JSON
    sedge/1/FLEET/facts/device/DEVICE           one device, as JSON

All messages are retained, and published only when they change. They are published by a separate thread, so
nothing else is held up. Its own connection has a will that says offline. Ids cannot break a topic
(topics.py), and strings from devices are printable ASCII (records.py), of which Home Assistant accepts
``MAX_STATE`` characters.
"""

import json
import logging
import time
from collections.abc import Mapping
from urllib.parse import urlencode

from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.problems import health
from sedge_cloud.facts.records import DeviceFacts, Fleet
from sedge_cloud.facts.snapshot import Snapshot
from sedge_cloud.outlets.supervisor import Supervised
from sedge_protocol import VERSION
from sedge_protocol.host.mqtt import BrokerSettings, Connected, MqttLink, Received, TooLarge
from sedge_protocol.wire.objective import ACCURACY, Metric
from sedge_protocol.wire.topics import ROOT

STEP_S, READ_S = 0.1, 10.0
# Home Assistant shows a state that has more characters than this as unknown.
MAX_STATE = 255
ONLINE, OFFLINE = b"online", b"offline"
_log = logging.getLogger("sedge.home_assistant")
# Entities by the key under which the state holds their value. Each has a platform and further attributes.
Entities = Mapping[str, tuple[str, Mapping[str, str]]]
_BYTES = {
    "device_class": "data_size",
    "unit_of_measurement": "B",
    "state_class": "total_increasing",
}
_COUNT = {"state_class": "measurement"}
FLEET: Entities = {
    "run": ("sensor", {"name": "Run"}),
    "round": ("sensor", {"name": "Rounds closed"}),
    "online": ("sensor", {"name": "Devices online", **_COUNT}),
    "problems": ("sensor", {"name": "Problems", **_COUNT}),
    "problem": ("binary_sensor", {"name": "Problem", "device_class": "problem"}),
    "reason": ("sensor", {"name": "What is wrong"}),
}
DEVICE: Entities = {
    "online": ("binary_sensor", {"name": "Online", "device_class": "connectivity"}),
    "heard": ("sensor", {"name": "Last heard", "device_class": "timestamp"}),
    "up": ("sensor", {"name": "Bytes sent", **_BYTES}),
    "down": ("sensor", {"name": "Bytes received", **_BYTES}),
    "reason": ("sensor", {"name": "What is wrong"}),
}


def messages(facts: Fleet, max_devices: int, page: str | None = None) -> dict[str, bytes]:
    """Return the payload for every topic. An empty one removes a device that is revoked or over the limit.

    ``page`` is the address of the status page, for Home Assistant to link to.
    """
    fleet = facts.fleet
    entities, state = _of_fleet(facts)
    about = _about(VERSION, page)
    payloads = {link_topic(fleet): ONLINE, **_published(fleet, None, about, entities, state)}
    wrong = dict[str, str]()
    for problem in facts.problems:  # the worst problem comes first
        wrong.setdefault(problem.subject, problem.text)
    active = [device.device for device in facts.devices if device.state != "revoked"]
    shown = set(active[:max_devices])
    for device in facts.devices:
        if device.device in shown:
            name = device.device
            entities, state = _of_device(device, wrong.get(name, ""))
            query = urlencode({"name": name})
            about = _about(device.version, f"{page.rstrip('/')}/device?{query}" if page else None)
            payloads.update(_published(fleet, name, about, entities, state))
        else:
            payloads.update(dict.fromkeys(_topics(fleet, device.device), b""))
    return payloads


def link_topic(fleet: str) -> str:
    """Return the topic that reports whether the coordinator is running."""
    return f"{ROOT}/{fleet}/facts/link"


def _about(version: str, page: str | None) -> dict[str, str]:
    """Return the attributes for the version and page of the fleet or a device, omitting unknown ones."""
    about = {"sw_version": version, "configuration_url": page or ""}
    return {key: value for key, value in about.items() if value}


def _of_fleet(facts: Fleet) -> tuple[Entities, dict[str, object]]:
    """Return the fleet's entities and state, based on its newest running run or else its newest run."""
    run = facts.shown()
    last = next((r for r in reversed(run.rounds if run else ()) if r.before is not None), None)
    metric = last.metric if last else ACCURACY
    worst = [f"{problem.subject} {problem.text}" for problem in facts.problems[:1]]
    state = {
        "run": run.run if run else None,
        "round": run.closed_rounds if run else None,
        "online": facts.online,
        "problems": len(facts.problems),
        "problem": "ON" if facts.problems else "OFF",
        "reason": "; ".join([health(facts.problems), *worst])[:MAX_STATE],
        **_values(metric, last.before if last else None, last.after if last else None),
    }
    return {**FLEET, **_measured(metric)}, state


def _of_device(device: DeviceFacts, wrong: str) -> tuple[Entities, dict[str, object]]:
    state = {
        "online": "ON" if device.state == "online" else "OFF",
        "heard": device.heard.isoformat(timespec="seconds") if device.heard else None,
        "up": device.up,
        "down": device.down,
        "reason": (wrong or device.waits or "nothing")[:MAX_STATE],
        **_values(device.metric, device.before, device.after),
    }
    return {**DEVICE, **_measured(device.metric)}, state


def _measured(metric: Metric) -> Entities:
    more = {**_COUNT, "unit_of_measurement": "%"} if metric.share else _COUNT
    name = metric.words[0].upper() + metric.words[1:]
    return {
        key: ("sensor", {"name": f"{name} {key} training", **more}) for key in ("before", "after")
    }


def _values(metric: Metric, before: float | None, after: float | None) -> dict[str, object]:
    """Return shares as percentages, and the values of any other metric unchanged."""
    scale = 100 if metric.share else 1
    pairs = (("before", before), ("after", after))
    return {key: None if value is None else float(f"{scale * value:.4g}") for key, value in pairs}


def _topics(fleet: str, device: str | None) -> tuple[str, str]:
    """Return the topics for the announcement and the state of ``device``, or of the fleet if it is None.

    The fleet's topic cannot clash with a device's, because no device id contains "_".
    """
    config = f"homeassistant/device/sedge-{fleet}/{device or '_fleet'}/config"
    return config, f"{ROOT}/{fleet}/facts/{'fleet' if device is None else f'device/{device}'}"


def _published(
    fleet: str,
    device: str | None,
    more: Mapping[str, str],
    entities: Entities,
    state: Mapping[str, object],
) -> dict[str, bytes]:
    """Return the two messages for a device or the fleet, its announcement and its state."""
    config, topic = _topics(fleet, device)
    whole = f"sedge/{fleet}"
    identity = whole if device is None else f"{whole}/{device}"
    about = {
        "identifiers": [identity],
        "name": device or f"Fleet {fleet}",
        "manufacturer": "Sedge",
        **more,
    }
    announced = {
        "device": about if device is None else {**about, "via_device": whole},
        "origin": {"name": "sedge-cloud", "sw_version": VERSION},
        "components": {
            key: {
                "platform": platform,
                "unique_id": f"{identity}/{key}",
                "value_template": f"{{{{ value_json.{key} }}}}",
                **entity,
            }
            for key, (platform, entity) in entities.items()
        },
        "state_topic": topic,
        "availability_topic": link_topic(fleet),
    }
    return {config: json.dumps(announced).encode(), topic: json.dumps(state).encode()}


class HomeAssistant:
    """Publishes the facts to Home Assistant from ``start`` to ``close``."""

    def __init__(self, cloud: CloudConfig, settings: BrokerSettings, snapshot: Snapshot) -> None:
        self._cloud = cloud
        self._snapshot = snapshot
        self._link_topic = link_topic(cloud.fleet)
        # The link subscribes to its own topic: receiving its messages proves that the link works, and
        # reveals a will that was published late.
        self._link = MqttLink(
            settings, (self._link_topic,), lambda: (self._link_topic, OFFLINE), retain=True
        )
        self._sent: dict[str, bytes] = {}
        # The first reading comes later: before devices have had time for a hello, all would appear offline.
        self._read_at = time.monotonic() + READ_S
        self._wanted: dict[str, bytes] = {}
        self._thread = Supervised("home assistant", self._turn, STEP_S, end=self._end)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Publish the status "offline" and end the thread."""
        self._thread.close()

    def _turn(self) -> None:
        self._step()
        if time.monotonic() >= self._read_at:
            self._read_at = time.monotonic() + READ_S
            facts = self._snapshot.facts()
            most, page = self._cloud.home_assistant.max_devices, self._cloud.http.url
            self._wanted = messages(facts, most, page)

    def _end(self) -> None:
        self._link.send(self._link_topic, OFFLINE)
        self._link.close()

    def _step(self) -> None:
        """Handle the link's events, and send changed messages while there is room in its queue."""
        for event in self._link.step():
            match event:
                case Connected():  # the broker may have lost the retained messages
                    self._sent.clear()
                case Received(payload=b"offline"):  # this is the will of our previous connection
                    self._sent.pop(self._link_topic, None)
                case TooLarge():
                    _log.warning("%s: lower [home_assistant] max_devices", event)
                case _:
                    pass
        for topic, payload in self._wanted.items():
            if self._sent.get(topic) != payload and self._link.room:
                self._link.send(topic, payload)
                self._sent[topic] = payload
