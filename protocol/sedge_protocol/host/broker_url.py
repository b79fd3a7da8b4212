"""Parses broker URLs: MQTT over TCP or websockets, each with or without TLS."""

from typing import NamedTuple
from urllib.parse import urlsplit

from sedge_protocol.errors import ConfigError

URLS = "mqtt://host[:port] or mqtts://host[:port], or ws:// or wss:// (websockets)"
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}


class Endpoint(NamedTuple):
    """A broker's host and port, whether to use TLS, and the path for websockets (None for plain TCP)."""

    host: str
    port: int
    tls: bool
    path: str | None


def parse_url(url: str) -> Endpoint:
    """Parse a broker's URL. Raises ``ConfigError`` if it is malformed."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError("broker.url", url, URLS) from None
    if parts.username is not None:  # the URL may contain a password, which must not be printed
        shown = f"{parts.scheme}://...@{parts.hostname}"
        raise ConfigError("broker.url", shown, f"{URLS}; set the password separately")
    web = parts.scheme in ("ws", "wss")
    if (
        not url.isprintable()
        or parts.scheme not in _PORTS
        or not parts.hostname
        or not (web or parts.path in ("", "/"))
        or parts.query
        or parts.fragment
        or port == 0
    ):
        raise ConfigError("broker.url", url, URLS)
    path = (parts.path.rstrip("/") or "/mqtt") if web else None
    tls = parts.scheme in ("mqtts", "wss")
    return Endpoint(parts.hostname, port or _PORTS[parts.scheme], tls, path)
