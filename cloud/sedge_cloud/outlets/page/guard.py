"""Decides who may use the status page: clients with the token or, without one, browsers on this machine.

A page of another origin can make a browser send requests here. Without a token, the Host header must
therefore be a name of this machine, or one of ``[http] hosts``. This rejects requests for a name that
another site has pointed here (DNS rebinding). With a token no such check is needed, because no other page
knows the token. A request that changes something also needs the page's own form (server.py).
"""

import base64
import binascii
import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL = ("localhost", "127.0.0.1", "::1")
# The path for health checks is exempt, because load balancers know neither the token nor the host name.
_OPEN = "/healthz"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Checks every request before ``app`` sees it, and adds headers that keep other sites' pages out."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Sequence[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(host.lower() for host in (*_LOCAL, *hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI)."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = None if scope["path"] == _OPEN else self._refusal(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._token is None:
            if _hostname(headers.get("host", "")) in self._hosts:
                return None
            return Response("unknown host; see [http] hosts in cloud.toml\n", status_code=421)
        if secrets.compare_digest(_given(headers).encode(), self._token.encode()):
            return None
        ask = {"WWW-Authenticate": 'Basic realm="Sedge: any name, and the token", charset="UTF-8"'}
        return Response("a token is required\n", status_code=401, headers=ask)


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # "[" begins an IPv6 address
        return None


def _given(headers: Headers) -> str:
    """Return the token in a request: a bearer token or, from browsers, a password with any user name."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def is_same_origin(request: Request) -> bool:
    """Return True if the browser says that a page from this server sent the request."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is None:
        return request.headers.get("sec-fetch-site") == "same-origin"
    return urlsplit(origin).netloc.lower() == host.lower()
