"""What runs beside the coordinator's loop outlives its errors."""

import errno
import http.client
import logging
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest
import uvicorn
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import FLEET
from tools.bench.parts.real_fleet import free_port, wait_until

from sedge_cloud.broker.child import find_mosquitto
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts import snapshot
from sedge_cloud.facts.records import Fleet
from sedge_cloud.facts.snapshot import Snapshot
from sedge_cloud.outlets import home_assistant, sidecars
from sedge_cloud.outlets.settings import HomeAssistantConfig, HttpConfig, NotifyConfig
from sedge_cloud.outlets.supervisor import Supervised
from sedge_emulate.broker.brokers import Broker
from sedge_protocol.host.mqtt import BrokerSettings, MqttLink, Received


def full() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.skipif(
    find_mosquitto() is None and os.environ.get("CI") != "true", reason="Mosquitto is not installed"
)
def test_each_goes_on_after_its_reading_has_failed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Problem log, notices, Home Assistant and page; the page's server fails once to start, too."""
    seen = Seen(tmp_path / "cloud")
    seen.cloud.store.close()
    failed: set[str] = set()
    look, startup = Snapshot.look, uvicorn.Server.startup

    def look_once_failing(self: Snapshot) -> tuple[Fleet, int]:
        name = threading.current_thread().name
        if name not in failed:
            failed.add(name)
            raise full()
        return look(self)

    async def startup_once_failing(self: uvicorn.Server, sockets: None = None) -> None:
        if "startup" not in failed:
            failed.add("startup")
            raise full()
        await startup(self, sockets)

    monkeypatch.setattr(Snapshot, "look", look_once_failing)
    monkeypatch.setattr(uvicorn.Server, "startup", startup_once_failing)
    monkeypatch.setattr(sidecars, "LOG_S", 0.01)
    monkeypatch.setattr(sidecars, "NOTICE_S", 0.01)
    monkeypatch.setattr(home_assistant, "READ_S", 0.01)
    monkeypatch.setattr(snapshot, "FRESH_S", 0.0)
    monkeypatch.setattr(snapshot, "STALE_S", 0.0)
    monkeypatch.setattr("sedge_cloud.facts.problems.ENOUGH_FREE_BYTES", 2**80)
    port, notice = free_port(), tmp_path / "notice"
    cloud = CloudConfig(
        fleet=FLEET,
        state_dir=str(seen.state),
        http=HttpConfig(f"127.0.0.1:{port}"),
        notify=NotifyConfig(command=("touch", str(notice))),
        home_assistant=HomeAssistantConfig(True),
    )

    def page() -> int:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status

    with Broker() as broker:
        link = MqttLink(BrokerSettings(broker.url, "listener"), (f"sedge/1/{FLEET}/facts/fleet",))
        with sidecars.sidecars(cloud, BrokerSettings(broker.url, "coordinator")):
            assert page() == 503
            wait_until(lambda: page() == 200, 20, "the page")
            wait_until(lambda: any("disk_low" in m for m in caplog.messages), 20, "the log")
            wait_until(notice.exists, 20, "the notice")
            wait_until(lambda: any(isinstance(e, Received) for e in link.step()), 20, "the facts")
        link.close()
    goes_on = sorted(m.partition(":")[0] for m in caplog.messages if "the thread continues" in m)
    assert goes_on == ["home assistant", "notices", "problem log", "status page"]


def test_an_error_that_lasts_is_logged_once_and_tried_ever_more_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    pauses: list[float] = []

    def turn() -> None:
        raise full()

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        return len(pauses) == 9

    thread = Supervised("name", turn, 2.0)
    monkeypatch.setattr(thread._stop, "wait", wait)
    thread._run()
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    assert caplog.messages == ["name: [Errno 24] Too many open files; the thread continues"]
