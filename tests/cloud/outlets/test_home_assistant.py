"""What Home Assistant is told, and that it gets there through a real Mosquitto with its access list."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import FLEET, a_hello
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.broker.accounts import add_passwords
from sedge_cloud.outlets.home_assistant import messages
from sedge_protocol.host.mqtt import BrokerSettings, MqttLink, Received

# home-assistant/core, components/mqtt/discovery.py and schemas.py, as of 2025.
TOPIC = re.compile(
    r"homeassistant/(?P<component>\w+)/(?:(?P<node>[a-zA-Z0-9_-]+)/)?(?P<object>[a-zA-Z0-9_-]+)/config"
)
ROOT_KEYS = {"device", "origin", "components", "state_topic", "availability_topic"}
# The service, which reads the facts twice a second here.
SERVE = (
    "import sys; from sedge_cloud.outlets import home_assistant; home_assistant.READ_S = 0.5; "
    "from sedge_cloud.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
# As docs/metrics.md says.
ACCESS = """
user homeassistant
topic readwrite homeassistant/#
topic read sedge/1/test/facts/#
"""


def read(found: dict[str, bytes], topic: str) -> Any:
    return json.loads(found[topic])


def test_the_fleet_and_its_devices(tmp_path: Path) -> None:
    seen = Seen(tmp_path)
    seen.cloud.hello()
    seen.round("a", "b", "c")
    seen.gone("c")
    seen.cloud.second_store().revoke_device("b")
    seen.cloud.load()
    found = messages(seen.facts(), 10)
    fleet = f"sedge/1/{FLEET}/facts"
    assert found[f"{fleet}/link"] == b"online"
    state = read(found, f"{fleet}/fleet")
    problems = state.pop("problems")
    reason = state.pop("reason")
    assert re.match(r"\d errors?, \d warnings?; run ", reason), reason
    assert problems > 0 and state == {
        "run": "run", "round": 1, "online": 1, "problem": "ON", "before": 25.0, "after": 75.0,
    }  # fmt: skip
    a, c = (read(found, f"{fleet}/device/{name}") for name in "ac")
    assert (a["online"], c["online"]) == ("ON", "OFF")
    assert (a["reason"], c["reason"]) == ("nothing", "is offline; round 2 waits for it")
    assert a["up"] > 0 and a["before"] == 25.0 and a["heard"].endswith("+00:00")
    taken = [topic for topic, payload in found.items() if not payload]
    assert taken == [f"homeassistant/device/sedge-{FLEET}/b/config", f"{fleet}/device/b"]
    first = messages(seen.facts(), 1)  # the others are taken away
    assert [read(first, f"{fleet}/device/a")["online"], first[f"{fleet}/device/c"]] == ["ON", b""]


def test_announcements_are_as_home_assistant_reads_them(tmp_path: Path) -> None:
    """Every value that a template names is in the state, and no two entities have one identity."""
    seen = Seen(tmp_path)
    seen.cloud.hello("a")
    why = a_hello("a", waits="x" * 300)  # longer than a state may be
    seen.cloud.say("a", why)
    found = messages(seen.facts(), 10, "http://10.0.0.5:8470/")
    announced = {topic: read(found, topic) for topic in found if topic.startswith("homeassistant/")}
    assert len(announced) == 4
    about = read(found, f"homeassistant/device/sedge-{FLEET}/a/config")["device"]
    assert about["configuration_url"] == "http://10.0.0.5:8470/device?name=a"
    assert about["sw_version"] == a_hello("a").version
    for topic, payload in announced.items():
        match = TOPIC.fullmatch(topic)
        assert match is not None and match["component"] == "device"
        assert match["node"] == f"sedge-{FLEET}" and set(payload) == ROOT_KEYS
        assert payload["origin"]["name"] and payload["device"]["identifiers"]
        state = read(found, payload["state_topic"])
        for key, entity in payload["components"].items():
            assert entity["platform"] in ("sensor", "binary_sensor")
            assert entity["value_template"] == f"{{{{ value_json.{key} }}}}" and key in state
        assert state.keys() == payload["components"].keys()
        assert all(len(str(value)) <= 255 for value in state.values())
    names = [e["unique_id"] for p in announced.values() for e in p["components"].values()]
    assert len(set(names)) == len(names)


class Listener:
    """What a broker has told Home Assistant: the last message of each topic."""

    def __init__(self, fleet: RealFleet) -> None:
        add_passwords(fleet.folder / "broker-passwords", {"homeassistant": "secret"})
        with (fleet.folder / "broker-acl").open("a") as file:
            file.write(ACCESS)
        fleet.processes["broker"].send_signal(signal.SIGHUP)
        self._settings = BrokerSettings(fleet.url, "ha", "homeassistant", "secret")
        self.found: dict[str, bytes] = {}
        self.restart()

    def restart(self) -> None:
        """Begin anew: what comes now is what the broker has retained."""
        self.found.clear()
        self.link = MqttLink(self._settings, ("homeassistant/#", "sedge/1/test/facts/#"))

    def has(self, topic: str, payload: bytes | None = None) -> bool:
        """Whether a topic has a message, or this one."""
        for event in self.link.step():
            if isinstance(event, Received):
                self.found[event.topic] = event.payload
        return topic in self.found and payload in (None, self.found[topic])


@pytest.mark.fleet
def test_through_a_real_broker(tmp_path: Path) -> None:
    """Retained, gone with a revoked device, offline when the coordinator is killed, and again online."""
    fleet = RealFleet(tmp_path)
    try:
        with (tmp_path / "cloud.toml").open("a") as file:
            file.write("\n[home_assistant]\nenabled = true\n")
        listener = Listener(fleet)
        serve = [sys.executable, "-c", SERVE, "-c", str(tmp_path / "cloud.toml"), "serve"]
        fleet.cloud("device", "add", "pi-1", "--out", str(tmp_path / "pi-1"))
        fleet.start("cloud", serve)
        config, link = "homeassistant/device/sedge-test/pi-1/config", "sedge/1/test/facts/link"
        wait_until(lambda: listener.has(config), 30, "the device is announced")
        listener.restart()
        wait_until(lambda: listener.has(config), 30, "what is announced is retained")
        state = json.loads(listener.found[config])["state_topic"]
        wait_until(lambda: listener.has(state) and listener.has(link, b"online"), 30, "its state")
        assert json.loads(listener.found[state])["online"] == "OFF"
        fleet.kill("cloud")
        wait_until(lambda: listener.has(link, b"offline"), 30, "nobody speaks for the fleet")
        fleet.cloud("device", "revoke", "pi-1")
        fleet.start("cloud", serve)
        wait_until(lambda: listener.has(link, b"online"), 30, "somebody does again")
        wait_until(lambda: listener.has(config, b""), 30, "the revoked device has gone")
        fleet.stop("cloud")
        wait_until(lambda: listener.has(link, b"offline"), 30, "an orderly end is told, too")
        assert listener.has("homeassistant/device/sedge-test/_fleet/config")
    finally:
        fleet.close()
