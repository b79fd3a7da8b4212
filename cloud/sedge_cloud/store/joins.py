"""Tokens for joining the fleet and devices' requests to join, as rows that survive a crash at any point.

    a join:  asked -> pending -> accepted -> admitted      (or refused)

A join is ``accepted`` in the same transaction that enrols its device. The device is told once the join is
``admitted``, which means that the broker has an account for it as well.
"""

import time
from collections.abc import Collection, Iterable, Mapping

import msgspec

from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.rows import JoinRow, JoinState, TokenRow
from sedge_cloud.store.settings import COORDINATOR
from sedge_cloud.store.tags import Tags
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.joining import TOKEN_PREFIX

# A token's refusal of a device is shown for RECENT_S, and recorded at most every NOTED_EVERY_S.
RECENT_S, NOTED_EVERY_S = 600.0, 30.0
# An expired token, and the devices that joined with it, are listed for this many seconds.
KEPT_S = 30 * 86_400.0


class Joins(Tags):
    """Tokens and joins as rows. Each method runs as one transaction and raises ``StorageError`` on failure.

    ``coordinator_account`` is the coordinator's user name at the broker, which no device may have as its
    id.
    """

    coordinator_account = ""

    def add_token(self, row: TokenRow) -> None:
        """Store a token."""
        with self._transaction() as db:
            self._insert(db, "tokens", row)
            self._enrol(db)

    def tokens(self) -> list[TokenRow]:
        """Return all tokens, oldest first."""
        return self._rows(TokenRow, "SELECT * FROM tokens ORDER BY created, token")

    def join_token(self, name: str) -> TokenRow | None:
        """Return the token with this name, or None."""
        return next(iter(self._rows(TokenRow, "SELECT * FROM tokens WHERE token = ?", name)), None)

    def revoke_token(self, name: str) -> None:
        """Revoke a token and refuse its pending devices. Raises ``ConfigError`` if it does not exist."""
        with self._transaction() as db:
            sql = "UPDATE tokens SET revoked = 1 WHERE token = ?"
            if not db.execute(sql, (name,)).rowcount:
                raise ConfigError("token", name, "a token (see `device token list`)")
            self._refuse(db, "token = ?", name, "the token was revoked")
            self._enrol(db)

    def joins(self, states: Collection[JoinState]) -> list[JoinRow]:
        """Return the joins in these states, oldest first."""
        some = sorted(states)
        sql = f"SELECT * FROM joins WHERE state IN ({','.join('?' * len(some))}) ORDER BY asked, device"
        return self._rows(JoinRow, sql, *some)

    def join_of(self, point: bytes) -> JoinRow | None:
        """Return the join of the device with this public key, or None."""
        with self._db.errors():
            row = self._db.execute("SELECT * FROM joins WHERE point = ?", (point,)).fetchone()
        return None if row is None else _join(row)

    def uses(self) -> dict[str, int]:
        """Return how many joins count against each token."""
        sql = "SELECT token, COUNT(*) FROM joins WHERE state != 'refused' GROUP BY token"
        with self._db.errors():
            return {str(token): int(count) for token, count in self._db.execute(sql)}

    def ask_to_join(self, asked: JoinRow, now: float) -> JoinRow:
        """Record that a device asks to join with a token.

        Returns its join, which stays the same if the device asks again.

        The join is pending, accepted (then the device is enrolled), or refused. A refusal is recorded with
        the token, and does not use the token up. ``now`` is on the wall clock.
        """
        with self._transaction() as db:
            sql = "SELECT * FROM tokens WHERE token = ? FOR UPDATE"
            token = next(iter(self._rows(TokenRow, sql, asked.token)), None)
            known = self.join_of(asked.point)
            if known is not None or token is None:
                return known or msgspec.structs.replace(
                    asked, state="refused", detail="no such token"
                )
            asked = msgspec.structs.replace(asked, device=token.device or asked.device, asked=now)
            why = self._why_refused(db, token, asked, now)
            if why:
                if now >= token.refused_at + NOTED_EVERY_S:
                    text = f"{asked.device} asked to join: {why}"
                    sql = "UPDATE tokens SET refused = ?, refused_at = ? WHERE token = ?"
                    db.execute(sql, (text, now, token.token))
                return msgspec.structs.replace(asked, state="refused", detail=why)
            state: JoinState = "accepted" if token.accepts else "pending"
            asked = msgspec.structs.replace(asked, state=state)
            self._insert(db, "joins", asked)
            if token.accepts:
                self._admit_device(db, asked, token)
        return asked

    def accept_join(self, device: str) -> None:
        """Enrol a pending device with its token's tags.

        Raises ``ConfigError`` if the device is not pending, or if its id has been given to another device
        in the meantime.
        """
        with self._transaction() as db:
            sql = "SELECT * FROM joins WHERE device = ? AND state = 'pending' FOR UPDATE"
            row = db.execute(sql, (device,)).fetchone()
            if row is None:
                raise ConfigError(
                    "device", device, "a device that is waiting to join (see `device list`)"
                )
            join = _join(row)
            token = self.join_token(join.token)
            if token is None or (not token.device and self.device(device) is not None):
                expected = "an id that is not enrolled yet (`device refuse` ends the request)"
                raise ConfigError("device", device, expected)
            db.execute("UPDATE joins SET state = 'accepted' WHERE point = ?", (join.point,))
            self._admit_device(db, join, token)

    def refuse_join(self, device: str) -> None:
        """Refuse a pending device. Raises ``ConfigError`` if it is not pending."""
        with self._transaction() as db:
            if not self._refuse(db, "device = ?", device, "the operator has refused it"):
                raise ConfigError(
                    "device", device, "a device that is waiting to join (see `device list`)"
                )

    def admit_joins(self, points: Iterable[bytes]) -> None:
        """Record that the broker has accounts for these devices, so they may be told of their admission."""
        with self._transaction() as db:
            for point in points:
                sql = "UPDATE joins SET state = 'admitted' WHERE point = ? AND state = 'accepted'"
                db.execute(sql, (point,))

    def refusing_tokens(self, now: float) -> list[TokenRow]:
        """Return the tokens that have recently refused a device."""
        return self._rows(TokenRow, "SELECT * FROM tokens WHERE refused_at > ?", now - RECENT_S)

    def spent_tokens(self, now: float) -> list[TokenRow]:
        """Return the tokens whose broker accounts should be deleted.

        These are revoked tokens, and expired ones that no device is still using to join.
        """
        joining = (
            "SELECT 1 FROM joins j LEFT JOIN devices d ON d.device = j.device AND d.secret = j.secret"
            " WHERE j.token = t.token AND (j.state IN ('pending', 'accepted')"
            " OR (j.state = 'admitted' AND d.revoked = 0 AND d.hello IS NULL))"
        )
        sql = (
            "SELECT * FROM tokens t WHERE t.account = 1 AND (t.revoked = 1"
            f" OR (t.expires <= ? AND NOT EXISTS ({joining}))) ORDER BY t.token"
        )
        return self._rows(TokenRow, sql, now)

    def end_accounts(self, tokens: Iterable[str], now: float) -> None:
        """Record that these tokens' broker accounts are gone, and delete tokens that expired long ago."""
        old = "SELECT token FROM tokens WHERE account = 0 AND expires < ?"
        with self._transaction() as db:
            for token in tokens:
                db.execute("UPDATE tokens SET account = 0 WHERE token = ?", (token,))
            db.execute(f"DELETE FROM joins WHERE token IN ({old})", (now - KEPT_S,))
            db.execute(f"DELETE FROM tokens WHERE token IN ({old})", (now - KEPT_S,))

    def _why_refused(self, db: Dialect, token: TokenRow, asked: JoinRow, now: float) -> str:
        """Return why a token does not admit a device; empty if it does."""
        if token.revoked:
            return "the token was revoked"
        if now >= token.expires:
            at = time.strftime("%F %R", time.gmtime(token.expires))
            return f"the token expired at {at} UTC: ask for a new one"
        if self.uses().get(token.token, 0) >= token.uses:
            return (
                f"the token is used up: {token.uses} devices have joined with it. Ask for a new one"
            )
        name = asked.device
        if name == self.coordinator_account or name.startswith((TOKEN_PREFIX, COORDINATOR)):
            return f"no device may be called {name}: join with another --name"
        waits = db.execute(
            "SELECT 1 FROM joins WHERE device = ? AND state = 'pending'", (name,)
        ).fetchone()
        if waits is not None:
            return f"another device waits to join as {name}: join with another --name"
        if not token.device and self.device(name) is not None:
            mine = f"if it is this one, join with a token from `device token add --device {name}`"
            return f"there is a device {name} already: {mine}; otherwise with another --name"
        return ""

    def _admit_device(self, db: Dialect, join: JoinRow, token: TokenRow) -> None:
        """Enrol a device, or give it a new secret if the token is for this device."""
        if self.device(join.device) is None:
            self.add_devices({join.device: join.secret})
        else:
            self.reissue_device(join.device, join.secret)
        self._put_tags(db, {join.device: token.read_tags()})

    def _refuse(self, db: Dialect, which: str, value: str, why: str) -> int:
        sql = f"UPDATE joins SET state = 'refused', detail = ? WHERE state = 'pending' AND {which}"
        return db.execute(sql, (why, value)).rowcount


def _join(row: Iterable[object]) -> JoinRow:
    return msgspec.convert(
        dict(zip(JoinRow.__struct_fields__, row, strict=True)), JoinRow, strict=False
    )


def tags_coded(tags: Mapping[str, str]) -> bytes:
    """Encode tags as stored in ``TokenRow``."""
    return msgspec.msgpack.encode(dict(tags))
