"""Answers devices that ask, on a token's topic, to join the fleet.

    join  ->  joined: pending | accepted | refused

Only the tokens are kept in memory: the outcome is stored as a row, and a device asks again until it is
answered. A join therefore survives a crash on either side at any point. A device gets no answer while its
row says ``accepted`` but its broker account does not exist yet (admin/joining.py).
"""

import logging
from hmac import compare_digest

from sedge_cloud.clocks import Wall
from sedge_cloud.ingest.device_cache import DeviceCache
from sedge_cloud.ingest.rate_limit import TokenBucket
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import JoinRow, TokenRow
from sedge_protocol.errors import FrameError, RemoteError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import Frame, Kind, open_frame, seal
from sedge_protocol.wire.joining import Agreement, fleet_key, key_name
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Join, Joined, decode_body, encode_body


class Joining:
    """A fleet's tokens, and the answers on their topics. All devices with one token share a rate limit."""

    def __init__(self, fleet: str, cache: DeviceCache, store: Rows, wall: Wall) -> None:
        self._fleet, self._cache, self._store, self._wall = fleet, cache, store, wall
        self._tokens: dict[str, TokenRow] = {}  # by the topic on which their devices publish
        self._buckets: dict[str, TokenBucket] = {}  # by token
        self._sent = 0

    def load(self) -> None:
        """Load the existing tokens. Raises ``StorageError``."""
        rows = self._store.tokens()
        self._tokens = {topics.up(self._fleet, row.token): row for row in rows if not row.revoked}
        self._buckets = {row.token: self._buckets.get(row.token, TokenBucket()) for row in rows}

    def bucket(self, topic: str) -> TokenBucket | None:
        """Return the token bucket that belongs to a token's topic. Returns None for any other topic."""
        token = self._tokens.get(topic)
        return None if token is None else self._buckets[token.token]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Effect]:
        """Answer a frame on a token's topic. Only some of the bad frames are logged.

        Raises ``StorageError``.
        """
        token = self._tokens[topic]
        try:
            return [*self._answered(token, topic, payload, now)]
        except RemoteError as exc:
            if not self._buckets[token.token].warns(now):
                return []
            return [Note(logging.WARNING, f"dropped a frame of token {token.token}: {exc}")]

    def _answered(self, token: TokenRow, topic: str, payload: bytes, now: float) -> list[Send]:
        keys = DeviceKeys.of(token.secret)
        frame = open_frame(payload, topic, keys.up)
        message = decode_body(frame.kind, frame.body) if frame.kind is Kind.JOIN else None
        if not isinstance(message, Join):
            raise FrameError(f"{frame.kind.name} on the topic of {token.token}, expected JOIN")
        known = self._store.join_of(message.point)
        agreement = self._agreement(token, message) if known is None else Agreement(known.secret)
        if not compare_digest(agreement.asks(message.device), message.proof):
            raise FrameError(f"JOIN as {message.device}: its proof does not match its key")
        row = known
        if row is None:
            asked = JoinRow(
                message.point, token.token, message.device, agreement.secret, "pending", 0
            )
            row = self._store.ask_to_join(asked, self._wall(now))
        answer = self._answer(row, agreement)
        if answer is None:
            return []
        self._sent += 1
        down = topics.down(self._fleet, token.token)
        body = Frame(Kind.JOINED, encode_body(answer), self._cache.incarnation, self._sent)
        return [Send(down, seal(body, down, keys.down))]

    def _agreement(self, token: TokenRow, message: Join) -> Agreement:
        private = fleet_key(self._store.secret())
        return Agreement.of(private, message.point, message.point, self._fleet, token.token)

    def _answer(self, row: JoinRow, agreement: Agreement) -> Joined | None:
        """Return the answer to a device's join. Returns None while its broker account is being created."""
        of = key_name(row.point)
        match row.state:
            case "accepted":
                return None
            case "admitted":
                tags = self._store.tags_of([row.device]).get(row.device, {})
                coded = tuple(f"{key}={value}" for key, value in tags.items())
                own = self._store.certificate(row.device)
                der = b"" if own is None else own.der
                proof = agreement.answers(row.device)
                return Joined(of, "accepted", row.device, proof, coded, certificate=der)
            case "pending":
                return Joined(of, "pending", row.device)
            case "refused":
                return Joined(of, "refused", row.device, detail=row.detail)
