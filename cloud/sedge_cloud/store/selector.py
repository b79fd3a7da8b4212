"""Translates conditions on devices' tags and announced attributes into SQL with separate values.

    select      = either
    either      = both ("or" both)*
    both        = condition ("and" condition)*
    condition   = "not" condition | "(" either ")" | NAME OPERATOR VALUE
    OPERATOR    = "=" | "!=" | "<" | "<=" | ">" | ">="

A name is an attribute (``ATTRIBUTES``) or a tag; a value is a word, or anything in quotes. ``=`` and ``!=``
compare text, or numbers for numeric attributes; the other operators compare numbers. A device without a tag
matches no condition on it except ``!=``, which it always matches.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from sedge_cloud.store.contract import Value
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Hello

# The attributes in a hello: the column, and whether it is numeric. A device may have several backends.
ATTRIBUTES = {
    "backend": ("backends", False),
    "version": ("version", False),
    "memory_mb": ("memory_mb", True),
    "num_train": ("num_train", True),
    "num_test": ("num_test", True),
}
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
MAX_TEXT, MAX_CONDITIONS, MAX_DEPTH = 1000, 32, 16
TAG = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_WORDS = ("and", "or", "not")
_TOKEN = re.compile(r"""\s*(?:([()])|(!=|<=|>=|=|<|>)|("[^"]*"|'[^']*')|([^\s()=!<>"']+))""")
_PLAIN = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True)
class Condition:
    """A condition on a device's row ``d``, as ``sql`` with its ``values``.

    If ``tag`` (key, value) is set, only devices with this tag match, and ``sql`` is the remaining
    condition. ``keys`` are the tags that the condition names.
    """

    sql: str
    values: tuple[Value, ...]
    tag: tuple[str, str] | None
    keys: frozenset[str]

    def query(self, what: str, table: str, where: str = "1 = 1") -> tuple[str, tuple[Value, ...]]:
        """Return a SELECT of ``what`` from a table's matching rows ``d``, and its values."""
        if self.tag is None:
            return f"SELECT {what} FROM {table} d WHERE {where} AND {self.sql}", self.values
        return f"{_tagged(what, table, where)} AND {self.sql}", (*self.tag, *self.values)

    def devices(self, table: str, where: str) -> tuple[str, tuple[Value, ...]]:
        """Return a SELECT of the devices in a table's matching rows ``d``, and its values."""
        if self.tag is None or not self.values:
            return self.query("d.device", table, where)
        # Without MATERIALIZED, PostgreSQL would join all devices' attributes before it filters the rows.
        few = f"WITH d AS MATERIALIZED ({_tagged('d.device', table, where)})"
        return f"{few} SELECT d.device FROM d WHERE {self.sql}", (*self.tag, *self.values)


def _tagged(what: str, table: str, where: str) -> str:
    source = f"tags t CROSS JOIN {table} d"  # makes SQLite look up the tagged devices first
    return (
        f"SELECT {what} FROM {source}"
        f" WHERE t.key = ? AND t.value = ? AND d.device = t.device AND {where}"
    )


class AbilityRow(msgspec.Struct, frozen=True):
    """A device's attributes from its last hello, for conditions; ``backends`` are enclosed in spaces."""

    device: str
    version: str
    backends: str
    memory_mb: int
    num_train: int
    num_test: int
    max_packet: int

    @staticmethod
    def of(device: str, hello: Hello) -> "AbilityRow":
        """Return the attributes in this hello."""
        backends = "".join(f" {name}" for name in hello.backends) + " "
        sizes = hello.memory_mb, hello.num_train, hello.num_test, hello.max_packet
        return AbilityRow(device, hello.version, backends, *sizes)


# The condition that every device matches.
ALL = Condition("1 = 1", (), None, frozenset())


@lru_cache(256)
def parse(text: str, key: str = "select", where: str = "") -> Condition:
    """Parse a condition. Raises ``ConfigError``, which names ``key``, if the text is invalid."""
    return _Parser(text, key, where).condition()


@dataclass(frozen=True)
class _Part:
    """A part of a condition. An ``and`` has ``conjuncts``; a part that requires a tag has a ``tag``."""

    sql: str
    values: tuple[Value, ...]
    tag: tuple[str, str] | None = None
    conjuncts: "tuple[_Part, ...]" = ()


@dataclass
class _Parser:
    text: str
    key: str
    where: str
    tokens: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    at: int = 0
    depth: int = 0
    keys: set[str] = field(default_factory=set[str])
    count: int = 0

    def condition(self) -> Condition:
        """Parse the whole text as a condition."""
        self._split()
        whole = self._either()
        if self.at < len(self.tokens):
            raise self._error("and, or, or the end")
        parts = list(whole.conjuncts or (whole,))
        tagged = next((part for part in parts if part.tag is not None), None)
        if tagged is not None:
            parts.remove(tagged)
        tag = None if tagged is None else tagged.tag
        sql = " AND ".join(part.sql for part in parts) or "1 = 1"
        values = tuple(value for part in parts for value in part.values)
        return Condition(sql, values, tag, frozenset(self.keys))

    def _split(self) -> None:
        if len(self.text) > MAX_TEXT:
            raise ConfigError(
                self.key, f"{len(self.text)} characters", f"at most {MAX_TEXT}", self.where
            )
        at, end = 0, len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise ConfigError(
                    self.key,
                    self.text,
                    f"a condition; character {at + 1} cannot start a word",
                    self.where,
                )
            kind = ("paren", "operator", "quoted", "word")[(match.lastindex or 1) - 1]
            self.tokens.append(
                (kind, match.group(match.lastindex or 1), match.start(match.lastindex or 1))
            )
            at = match.end()

    def _either(self) -> _Part:
        parts = self._chain("or", self._both)
        return parts[0] if len(parts) == 1 else _Part(*_joined(parts, " OR "))

    def _both(self) -> _Part:
        parts = self._chain("and", self._condition)
        if len(parts) == 1:
            return parts[0]
        return _Part(*_joined(parts, " AND "), conjuncts=tuple(parts))

    def _chain(self, word: str, of: Callable[[], _Part]) -> list[_Part]:
        parts = [of()]
        while self._word() == word:
            self.at += 1
            parts.append(of())
        return parts

    def _condition(self) -> _Part:
        if self.depth > MAX_DEPTH:
            raise self._error(f"at most {MAX_DEPTH} levels of parentheses and not")
        if self._word() == "not":
            self.at, self.depth = self.at + 1, self.depth + 1
            negated = self._condition()
            self.depth -= 1
            return _Part(f"NOT {negated.sql}", negated.values)
        if self._is("("):
            self.at, self.depth = self.at + 1, self.depth + 1
            part = self._either()
            self.depth -= 1
            if not self._is(")"):
                raise self._error("and, or, or a closing parenthesis")
            self.at += 1
            return part
        return self._comparison()

    def _comparison(self) -> _Part:
        self.count += 1
        if self.count > MAX_CONDITIONS:
            raise self._error(f"at most {MAX_CONDITIONS} comparisons")
        name = self._take(("word",), "an attribute or a tag")
        if name in _WORDS or not TAG.fullmatch(name):
            self.at -= 1
            raise self._error("an attribute or a tag")
        operator = self._take(("operator",), " ".join(OPERATORS))
        value = self._take(("word", "quoted"), "a value")
        value = value[1:-1] if value[:1] in ("'", '"') else value
        return self._compared(name, operator, value)

    def _compared(self, name: str, operator: str, value: str) -> _Part:
        column, is_number = ATTRIBUTES.get(name, ("", False))
        ordered = operator not in ("=", "!=")
        if name not in ATTRIBUTES:
            self.keys.add(name)
        elif ordered and not is_number:
            raise self._refused(f"{name} {operator} {value}", f"{name} = … or {name} != …")
        if ordered or is_number:
            compared: Value = number_of(value)
            if compared is None:
                raise self._refused(f"{name} {operator} {value}", f"a number after {name}")
        else:
            compared = value
        negation, sign = ("NOT ", "=") if operator == "!=" else ("", operator)
        if name not in ATTRIBUTES:
            of = "number" if ordered else "value"
            sql = (
                f"SELECT 1 FROM tags g WHERE g.device = d.device AND g.key = ? AND g.{of} {sign} ?"
            )
            tag = (name, value) if operator == "=" else None
            return _Part(f"{negation}EXISTS ({sql})", (name, compared), tag)
        if name == "backend":
            if not _PLAIN.fullmatch(value):
                raise self._refused(f"backend {operator} {value}", "the name of a backend")
            sign, compared = "LIKE", f"% {value} %"
        sql = f"SELECT 1 FROM abilities a WHERE a.device = d.device AND a.{column} {sign} ?"
        return _Part(f"{negation}EXISTS ({sql})", (compared,))

    def _word(self) -> str:
        kind, text, _ = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", 0)
        return text.lower() if kind == "word" and text.lower() in _WORDS else ""

    def _is(self, paren: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][:2] == ("paren", paren)

    def _take(self, kinds: tuple[str, ...], expected: str) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at][0] not in kinds:
            raise self._error(expected)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _error(self, expected: str) -> ConfigError:
        if self.at >= len(self.tokens):
            return self._refused(self.text, f"{expected} at its end")
        _, found, at = self.tokens[self.at]
        return self._refused(self.text, f"{expected} instead of {found!r} at character {at + 1}")

    def _refused(self, found: str, expected: str) -> ConfigError:
        return ConfigError(self.key, found, expected, self.where)


def _joined(parts: list[_Part], word: str) -> tuple[str, tuple[Value, ...]]:
    values = tuple(value for part in parts for value in part.values)
    return f"({word.join(part.sql for part in parts)})", values


def number_of(text: str) -> float | None:
    """Parse the text as a finite number; None if it is not one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class DeviceQuery:
    """The devices that are in a ``state``, have ``search`` in their id, and match a condition.

    Whether devices are online is only known while the service is ``running``.
    """

    state: str | None
    search: str = ""
    running: bool = True
    condition: Condition = ALL

    def query(self, what: str) -> tuple[str, tuple[Value, ...]]:
        """Return a SELECT of ``what`` from the devices' rows ``d``, and its values."""
        conditions, values = ["1 = 1"], list[str]()
        if self.state is not None:
            conditions.append(self._in_state(self.state))
        if self.search:  # % and _ are escaped to match literally
            conditions.append("d.device LIKE ? ESCAPE '!'")
            text = self.search.lower()
            values.append("%" + text.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%")
        sql, more = self.condition.query(what, "devices")
        return f"{sql} AND {' AND '.join(conditions)}", (*more, *values)

    def _in_state(self, state: str) -> str:
        if state == "revoked":
            return "d.revoked = 1"
        if state == "never":
            return "d.revoked = 0 AND d.hello IS NULL"
        heard, aside = "d.revoked = 0 AND d.hello IS NOT NULL", "SELECT device FROM paused"
        if state == "paused":
            return f"{heard} AND d.device IN ({aside})"
        if (state == "unknown") == self.running:
            return "1 = 0"
        known, online = (
            f"{heard} AND d.device NOT IN ({aside})",
            "SELECT device FROM sessions WHERE online = 1",
        )
        here = {
            "online": f" AND d.device IN ({online})",
            "offline": f" AND d.device NOT IN ({online})",
        }
        return known + here.get(state, "")
