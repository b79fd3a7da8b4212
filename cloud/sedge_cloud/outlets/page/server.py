"""The status page's server, which runs in a separate thread and never touches or waits for the loop.

It shares its readings of the facts with the problem log (snapshot.py), so it slows the coordinator's loop
only while it occupies the interpreter. An operator's actions call the same functions as the command line.
They run in a thread with a separate store, because a broker may be slow. The loop notices them the way it
notices commands.

    /              the page                /api/fleet       all facts       /events   changes, server-sent
    /device        one device              /api/runs/NAME   one run         /metrics  Prometheus
    /round         one round               /api/devices     all devices     /healthz  200 or 503
    /wall          for a screen on a wall  /api/problems, /api/openapi.json
    /confirm       before an action        /act             POST: performs it
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import closing
from urllib.parse import parse_qs

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from sedge_cloud.admin.revocation import Revocation
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import DeviceFacts, Fleet
from sedge_cloud.facts.selection import DeviceSelection
from sedge_cloud.facts.snapshot import FRESH_S, Snapshot
from sedge_cloud.outlets.metrics import exposition
from sedge_cloud.outlets.page import actions, html
from sedge_cloud.outlets.page.connections import ACCEPTED, STREAM, Connection, Listener, LoopErrors
from sedge_cloud.outlets.page.guard import Guard, is_same_origin
from sedge_cloud.outlets.page.openapi import document
from sedge_cloud.outlets.supervisor import Supervised
from sedge_cloud.store.opening import open_store
from sedge_protocol.errors import ConfigError, SedgeError, StorageError, os_reason

# Any further streams are refused; the page also works without a stream.
MAX_STREAMS = 64
# The page's own forms are far smaller.
MAX_FORM_BYTES = 4096
# How many rendered pages to cache. They differ in which devices they show.
MAX_DRAWN = 32
_log = logging.getLogger("sedge.http")


class Pages:
    """Caches rendered pages for all viewers. Only the server's thread may use it."""

    def __init__(self) -> None:
        self._facts: Fleet | None = None
        self._drawn: dict[Hashable, str] = {}

    def of_fleet(self, snapshot: Snapshot, run: str | None, wanted: DeviceSelection) -> str:
        """Return the main page for the current facts, showing this run and these devices."""
        facts = snapshot.facts()
        run = run if run is None or facts.run(run) else None

        def draw() -> str:
            listed = _listed(snapshot, facts, wanted)
            tags = snapshot.tags_of([device.device for device in listed[0]])
            return html.status_page(facts, run, wanted, listed, tags)

        return self.once(facts, (run, wanted), draw)

    def once(self, facts: Fleet, key: Hashable, draw: Callable[[], str]) -> str:
        """Return the page that ``draw`` renders from these facts, cached by ``key``."""
        if facts is not self._facts or len(self._drawn) >= MAX_DRAWN:
            self._facts = facts
            self._drawn.clear()
        if key not in self._drawn:
            self._drawn[key] = draw()
        return self._drawn[key]


def _listed(
    snapshot: Snapshot, facts: Fleet, wanted: DeviceSelection
) -> tuple[list[DeviceFacts], int]:
    """Return the page of wanted devices, and how many there are on all pages.

    A large fleet is sorted by id. Raises ``SedgeError``.
    """
    if facts.is_large:
        return snapshot.choose(facts, wanted)
    if not wanted.where:
        return html.chosen(facts, wanted)
    matching, _ = snapshot.choose(facts, DeviceSelection(where=wanted.where))
    return html.chosen(facts, wanted, {device.device for device in matching})


class StatusServer:
    """Serves the status page of a fleet from ``start`` to ``close``."""

    def __init__(self, cloud: CloudConfig, snapshot: Snapshot) -> None:
        self._cloud = cloud
        self._snapshot = snapshot
        self._pages = Pages()
        self._csrf = secrets.token_urlsafe(24)
        self._streams = 0
        token = cloud.http.token()
        host, port = cloud.http.address()
        self._socket = _listen(host, port)
        guard = Guard(self._app(), token, cloud.http.hosts)
        self._config = uvicorn.Config(
            guard, log_config=None, access_log=False, lifespan="off", ws="none", http=Connection,
            loop="asyncio", proxy_headers=False, server_header=False, timeout_graceful_shutdown=1,
            backlog=ACCEPTED,
        )  # fmt: skip
        self._server = uvicorn.Server(self._config)
        self._thread = Supervised("status page", self._turn, 0.0, wake=self._leave)

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Start serving."""
        # uvicorn warns about requests that are not HTTP, and strangers could use that to fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._thread.start()
        _log.info("status page on http://%s", self._cloud.http.listen)

    def close(self) -> None:
        """Stop within a second or two. A hanging request does not hold up the coordinator."""
        self._thread.close()
        self._socket.close()

    def _leave(self) -> None:
        self._server.should_exit = True

    def _turn(self) -> None:
        self._server = uvicorn.Server(self._config)
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        with self._socket.dup() as listener:  # uvicorn has closed the socket
            await self._server.serve(sockets=[listener])

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/device", self._device),
                Route("/round", self._round),
                Route("/wall", self._wall),
                Route("/live.js", self._script),
                Route("/confirm", self._confirm),
                Route("/act", self._act, methods=["POST"]),
                Route(STREAM, self._events),
                Route("/metrics", self._metrics),
                Route("/healthz", self._health),
                Route("/api/fleet", self._fleet),
                Route("/api/runs/{run}", self._one_run),
                Route("/api/devices", self._devices),
                Route("/api/problems", self._problems),
                Route("/api/openapi.json", self._openapi),
            ],
            exception_handlers={SedgeError: _failed, OSError: _failed},
        )

    async def _page(self, request: Request) -> Response:
        query = request.query_params
        wanted = _wanted(request, html.MAX_DEVICES)
        text = self._pages.of_fleet(self._snapshot, query.get("run"), wanted)
        return Response(text, media_type="text/html")

    async def _device(self, request: Request) -> Response:
        facts, name = self._snapshot.facts(), request.query_params.get("name", "")
        device = self._snapshot.device(name)
        if device is None:
            return Response("no such device\n", status_code=404)
        tags = self._snapshot.tags_of([name]).get(name, {})
        version = self._snapshot.version_of(facts.shown(), name)
        given = tags, version, self._snapshot.settings_of(name)
        text = self._pages.once(
            facts, ("device", name), lambda: html.device_page(facts, device, *given)
        )
        return Response(text, media_type="text/html")

    async def _round(self, request: Request) -> Response:
        facts, query = self._snapshot.facts(), request.query_params
        run, number = facts.run(query.get("run", "")), query.get("number", "")
        rounds = [*run.rounds, run.open] if run else []
        it = next((r for r in rounds if r is not None and str(r.round) == number), None)
        if it is None:
            return Response("no such round, or no longer kept\n", status_code=404)
        key = "round", it.run, it.round
        text = self._pages.once(facts, key, lambda: html.round_page(facts, it))
        return Response(text, media_type="text/html")

    async def _wall(self, request: Request) -> Response:
        facts, run = self._snapshot.facts(), request.query_params.get("run")
        run = run if run is not None and facts.run(run) else None
        text = self._pages.once(facts, ("wall", run), lambda: html.wall_page(facts, run))
        return Response(text, media_type="text/html")

    async def _script(self, request: Request) -> Response:
        return Response(html.script(), media_type="text/javascript")

    async def _confirm(self, request: Request) -> Response:
        verb, name = request.query_params.get("verb", ""), request.query_params.get("name", "")
        action = actions.find(verb, name, self._snapshot.facts())
        return Response(html.confirm_page(action, self._csrf), media_type="text/html")

    async def _act(self, request: Request) -> Response:
        form = await _form(request)
        token = form.get("csrf", "")
        if not is_same_origin(request) or not secrets.compare_digest(
            token.encode(), self._csrf.encode()
        ):
            return Response("expected this page's own form\n", status_code=403)
        action = actions.find(form.get("verb", ""), form.get("name", ""), self._snapshot.facts())
        _log.warning("%s %s, requested on the status page", action.verb, action.name)
        revocation = await asyncio.to_thread(self._do, action, form.get("said", ""))
        self._snapshot.expire()
        if revocation is None or not revocation.left:
            return RedirectResponse(action.back, status_code=303)
        return Response(html.outcome_page(action, revocation), media_type="text/html")

    def _do(self, action: actions.Action, said: str) -> Revocation | None:
        with closing(open_store(self._cloud)) as store:
            done = action.do(store, self._cloud, said)
        if not isinstance(done, Revocation):
            return None
        if done.failure:
            _log.warning("%s %s is incomplete: %s", action.verb, action.name, done.failure)
        return done

    async def _events(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return Response("too many pages are open\n", status_code=503)
        headers = {"X-Accel-Buffering": "no"}  # keeps nginx from buffering events
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            (last, seen), said = self._snapshot.look(), time.monotonic()
            yield "retry: 3000\n\n"
            while not self._server.should_exit:
                await asyncio.sleep(FRESH_S)
                facts, changes = self._snapshot.look()
                if changes != seen:
                    for event in _closed(last, facts):
                        yield event
                    yield f"event: change\ndata: {changes}\n\n"
                    last, seen, said = facts, changes, time.monotonic()
                elif time.monotonic() - said >= html.BEAT_S:
                    said = time.monotonic()
                    yield "event: beat\ndata:\n\n"
        except (StorageError, OSError) as exc:
            _log.warning("the status page cannot read: %s", exc)
        finally:
            self._streams -= 1

    async def _metrics(self, request: Request) -> Response:
        text, kind = exposition(self._snapshot.facts())
        return Response(text, headers={"Content-Type": kind})

    async def _health(self, request: Request) -> Response:
        it = self._snapshot.facts().coordinator
        if it.running and it.link:
            return Response("ok\n")
        return Response("no broker\n" if it.running else "silent\n", status_code=503)

    async def _fleet(self, request: Request) -> Response:
        return _json(self._snapshot.facts())

    async def _one_run(self, request: Request) -> Response:
        run = self._snapshot.facts().run(request.path_params["run"])
        return _json({"error": "no such run"}, 404) if run is None else _json(run)

    async def _devices(self, request: Request) -> Response:
        wanted = _wanted(request, None)
        return _json(self._snapshot.choose(self._snapshot.facts(), wanted)[0])

    async def _problems(self, request: Request) -> Response:
        return _json(self._snapshot.facts().problems)

    async def _openapi(self, request: Request) -> Response:
        return _json(document())


def _listen(host: str, port: int) -> Listener:
    """Return a bound socket. It is bound here so that a port in use ends the command with a single line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return Listener(fileno=socket.create_server((host, port), family=family).detach())
    except OSError as exc:
        raise ConfigError(
            "http.listen", f"{host}:{port}", f"an address to bind ({os_reason(exc)})"
        ) from exc


def _wanted(request: Request, limit: int | None) -> DeviceSelection:
    """Parse a request's selection of devices. Raises ``ConfigError``."""
    fields = {key: value for key, value in request.query_params.items() if value}
    fields = {
        key: value for key, value in fields.items() if key in DeviceSelection.__struct_fields__
    }
    try:
        return msgspec.convert({"limit": limit, **fields}, DeviceSelection, strict=False)
    except msgspec.ValidationError as exc:
        expected = "search, state, where, sort, offset and limit as in api/openapi.json"
        raise ConfigError("query", str(exc), expected) from exc


async def _form(request: Request) -> dict[str, str]:
    """Parse the fields of a small form. Raises ``ConfigError``."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise ConfigError("form", f"{len(body)} bytes", f"at most {MAX_FORM_BYTES}")
    return {key: values[0] for key, values in parse_qs(body.decode(errors="replace")).items()}


def _closed(last: Fleet, facts: Fleet) -> list[str]:
    """Return an event for each round that closed between two readings."""
    before = {run.run: run.rounds[-1].round for run in last.runs if run.rounds}
    rounds = (r for run in facts.runs for r in run.rounds)
    closed = [r for r in rounds if r.round > before.get(r.run, 0)]
    said = [{key: getattr(r, key) for key in ("run", "round", "before", "after")} for r in closed]
    return [f"event: round\ndata: {msgspec.json.encode(one).decode()}\n\n" for one in said]


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    """Return the error as one line of text, as the response to a request that cannot be served."""
    status = 503 if isinstance(error, StorageError | OSError) else 400
    return Response(f"{error}\n", status_code=status, media_type="text/plain")
