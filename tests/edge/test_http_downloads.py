"""[download] of edge.toml, and the thread that asks web servers while the agent goes on."""

import threading
from pathlib import Path

import numpy as np
import pytest
from tools.bench.parts.blob_server import serving

from sedge_edge import http_downloads
from sedge_edge.http_downloads import DownloadConfig, HttpDownloads
from sedge_edge.rounds.effects import FetchedChunk, FetchSpan, SpanEnd
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.transfer import describe

BLOB = np.random.default_rng(0).bytes(60_000)
MANIFEST = describe(BLOB, 4096)
NAME = MANIFEST.sha256.hex()


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (DownloadConfig(), {"http://a.example/x", "https://b.example:8443/x"}),
        (DownloadConfig("https"), {"https://b.example:8443/x"}),
        (DownloadConfig(hosts=("A.example",)), {"http://a.example/x"}),
        (DownloadConfig("never"), set[str]()),
    ],
)
def test_which_servers_may_be_asked(config: DownloadConfig, allowed: set[str]) -> None:
    urls = {"http://a.example/x", "https://b.example:8443/x", "file:///a.example/x"}
    assert {url for url in urls if config.permits(url)} == allowed


def test_a_metered_link_may_be_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    config, metered = DownloadConfig(unmetered=True), True
    monkeypatch.setattr(http_downloads, "link_is_metered", lambda: metered)
    assert not config.permits("https://a.example/x")
    metered = False
    assert config.permits("https://a.example/x")


@pytest.mark.parametrize("host", ["", "https://a.example", "a.example:80", "me@a.example"])
def test_a_host_is_a_name(host: str) -> None:
    with pytest.raises(ConfigError, match=r"download\.hosts"):
        DownloadConfig(hosts=(host,)).check()


def test_an_authority_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"download\.ca_file"):
        DownloadConfig(ca_file=tmp_path / "ca.pem").check()


def test_parts_come_one_after_the_other_and_wait_for_whoever_takes_them() -> None:
    downloads, woken = HttpDownloads(DownloadConfig()), threading.Event()
    found: list[FetchedChunk | SpanEnd] = []
    with serving(blobs={NAME: BLOB}) as server:
        wanted = FetchSpan(7, f"{server.url}/{NAME}", MANIFEST, 0, MANIFEST.count)
        downloads.start(wanted, woken.set)
        while not (found and isinstance(found[-1], SpanEnd)):
            assert woken.wait(10)
            woken.clear()
            found += downloads.taken()
    assert found.pop() == SpanEnd(7)
    assert b"".join(part.data for part in found if isinstance(part, FetchedChunk)) == BLOB


def test_nothing_comes_after_a_stop() -> None:
    downloads, woken = HttpDownloads(DownloadConfig()), threading.Event()
    with serving("stalls", {NAME: BLOB}) as server:
        wanted = FetchSpan(7, f"{server.url}/{NAME}", MANIFEST, 0, MANIFEST.count)
        downloads.start(wanted, woken.set)
        assert woken.wait(10)
        (work,) = [thread for thread in threading.enumerate() if thread.name == "sedge-http"]
        downloads.stop()
        work.join(10)
        assert not work.is_alive()
    assert all(isinstance(part, FetchedChunk) for part in downloads.taken())
