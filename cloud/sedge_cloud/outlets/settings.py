"""Sections [http], [notify] and [home_assistant] in cloud.toml: who may see the fleet, who is notified."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from sedge_protocol.errors import ConfigError
from sedge_protocol.host.toml import named_text

# The length of 16 random bytes in hexadecimal. Such a token cannot be guessed, so attempts are not limited.
MIN_TOKEN = 32


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[http]: the status page, its JSON and its metrics (pip install 'sedge-fl[http]').

    See docs/operating.md.
    """

    listen: str | None = None
    """Address of the status page, as host:port; by default there is no page, and beyond loopback
    ``token_file`` is required."""
    token_file: str | None = None
    """File with a token of 32 or more characters; browsers ask for it as a password, programs send it as
    a bearer token."""
    hosts: tuple[str, ...] = ()
    """Host names under which a reverse proxy, which then controls access, serves the page without a
    token."""

    url: str | None = None
    """Address of the page as a browser reaches it, such as "http://10.0.0.5:8470/"; Home Assistant links
    each device to its page."""

    def address(self, where: str = "") -> tuple[str, int]:
        """Return the host and the port. Raises ``ConfigError`` for a malformed address in ``where``."""
        host, _, port = (self.listen or "").rpartition(":")
        if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
            raise ConfigError("http.listen", self.listen, "host:port, as in 127.0.0.1:8470", where)
        return host.removeprefix("[").removesuffix("]"), int(port)

    def is_loopback(self, where: str = "") -> bool:
        """Return True if only this machine can reach the page. Raises as ``address`` does."""
        host, _ = self.address(where)
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def token(self) -> str | None:
        """Read the token that gives access to the page; None if none is needed. Raises ``ConfigError``."""
        if self.token_file is None:
            return None
        token = named_text(self.token_file, "http.token_file").strip()
        if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable():
            expected = f"{MIN_TOKEN} or more plain characters, as printed by `openssl rand -hex 32`"
            raise ConfigError("http.token_file", f"{len(token)} characters", expected)
        return token

    def check(self, where: str) -> None:
        """Raise ``ConfigError`` for an invalid address, or for one open to everybody without a token."""
        if self.url is not None and not _is_web(self.url):
            raise ConfigError("http.url", self.url, "http://… or https://…", where)
        if self.listen is None:
            return
        if not self.is_loopback(where) and self.token_file is None:
            expected = "a loopback address, unless token_file is set"
            raise ConfigError("http.listen", self.listen, expected, where)


class NotifyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[notify]: alerts about a failed run, a stuck round, a lost device or broker, or a low disk."""

    webhook: str | None = None
    """URL to which each problem is posted as JSON; redirects are not followed."""
    command: tuple[str, ...] = ()
    """Program, with arguments, that receives the same JSON on standard input."""
    every_s: Annotated[float, Meta(ge=60, le=604_800)] = 3600.0
    """Seconds before a problem that persists is reported again."""

    @property
    def wanted(self) -> bool:
        """Return True if any receiver is configured."""
        return self.webhook is not None or bool(self.command)

    def check(self, where: str) -> None:
        """Raise ``ConfigError`` for an invalid URL."""
        if self.webhook is not None and not _is_web(self.webhook):
            raise ConfigError("notify.webhook", self.webhook, "http://… or https://…", where)


class HomeAssistantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[home_assistant]: entities in a Home Assistant that uses the same broker.

    docs/metrics.md says which permissions Home Assistant's broker account needs.
    """

    enabled: bool = False
    """Announce the fleet and its devices to Home Assistant, and publish their state."""
    max_devices: Annotated[int, Meta(ge=0, le=1000)] = 50
    """Maximum number of devices that get their own entities, chosen in order of their ids."""


def _is_web(text: str) -> bool:
    try:
        url = urlsplit(text)
    except ValueError:  # "[" begins an IPv6 address
        return False
    return url.scheme in ("http", "https") and bool(url.hostname)
