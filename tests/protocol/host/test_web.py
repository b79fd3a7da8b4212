"""Spans of blobs over HTTP and TLS: whose certificate, which redirections, and an end to silence."""

import threading
from pathlib import Path

import numpy as np
import pytest
from tools.bench.parts.blob_server import LOOPBACK, serving
from tools.bench.parts.certificates import make_ca, make_certificate

from sedge_protocol.errors import LinkError
from sedge_protocol.host import web
from sedge_protocol.host.web import Span, parse, shown
from sedge_protocol.wire.transfer import describe

BLOB = np.random.default_rng(0).bytes(20_000)
MANIFEST = describe(BLOB, 4096)
NAME = MANIFEST.sha256.hex()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    make_ca(folder, "ca")
    make_ca(folder, "other")
    make_certificate(folder, "server", "ca", f"IP:{LOOPBACK}")
    return folder


def test_a_span_over_tls(certificates: Path) -> None:
    pair = certificates / "server.crt", certificates / "server.key"
    with serving("ranges", {NAME: BLOB}, pair) as server:
        span = Span(f"{server.url}/{NAME}", MANIFEST, 1, 5, ca_file=str(certificates / "ca.crt"))
        assert b"".join(data for _, data in span.chunks()) == BLOB[4096:]
        for ca_file in (None, str(certificates / "other.crt")):
            span = Span(f"{server.url}/{NAME}", MANIFEST, 0, 5, ca_file=ca_file)
            with pytest.raises(LinkError, match="invalid certificate: "):
                list(span.chunks())


def test_a_redirection_never_leaves_tls_nor_the_hosts_that_are_allowed(certificates: Path) -> None:
    pair = certificates / "server.crt", certificates / "server.key"
    ca_file = str(certificates / "ca.crt")
    with serving("redirects", {NAME: BLOB}, pair) as server, serving(blobs={NAME: BLOB}) as plain:
        url = f"{server.url}/{NAME}"
        assert len(list(Span(url, MANIFEST, 0, 5, ca_file=ca_file).chunks())) == 5
        only_first = Span(url, MANIFEST, 0, 5, lambda where: "/there/" not in where, ca_file)
        with pytest.raises(LinkError, match=r"which edge\.toml does not allow"):
            list(only_first.chunks())
        for elsewhere, why in ((plain.url, "from https to http"), ("file:///etc", "expected http")):
            server.elsewhere = elsewhere
            with pytest.raises(LinkError, match=why):
                list(Span(url, MANIFEST, 0, 5, ca_file=ca_file).chunks())
        assert plain.asked == []


def test_a_server_that_says_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SILENCE_S", 0.2)
    with serving("stalls", {NAME: BLOB}) as server:
        chunks = Span(f"{server.url}/{NAME}", MANIFEST, 0, 5).chunks()
        assert [next(chunks)[0] for _ in range(2)] == [0, 1]
        with pytest.raises(LinkError, match="silent for 0 s"):
            next(chunks)


@pytest.mark.parametrize("manner", ["stalls", "drips"])
def test_another_thread_ends_the_wait(manner: str) -> None:
    with serving(manner, {NAME: BLOB}) as server:
        span = Span(f"{server.url}/{NAME}", MANIFEST, 0, 5)
        chunks = span.chunks()
        assert [next(chunks)[0] for _ in range(2)] == [0, 1]
        timer = threading.Timer(0.1, span.stop)
        timer.start()
        with pytest.raises(LinkError):
            next(chunks)
        timer.join()
        with pytest.raises(LinkError, match="stopped"):
            list(span.chunks())


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://host/x", "http://", "https://user:word@host/x", "https://host:0/",
        "https://host:x/", "https://h/\r\nX: y", "https://h/ä", "https://[::1", "//host/x",
        "https://h/" + "x" * 2048,
    ],
)  # fmt: skip
def test_what_is_no_url_for_us(url: str) -> None:
    with pytest.raises(LinkError, match="expected http://host/path or https://host/path"):
        parse(url)
    assert "word" not in shown(url)


def test_a_presigned_url_is_asked_as_it_is_and_shown_without_its_signature() -> None:
    url = "https://bucket.example:9000/a/b?X-Signature=secret&x=%20"
    assert parse(url) == ("bucket.example", 9000, True, "/a/b?X-Signature=secret&x=%20")
    assert shown(url) == "https://bucket.example:9000/a/b"
