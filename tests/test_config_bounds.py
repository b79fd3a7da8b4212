"""Every key of every configuration file is read within its bounds, and refused in one line otherwise.

A walk over the structs: no key can be added whose type and bounds are not checked. Rules between keys are
for the tests of each file.
"""

import json
import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec
import pytest
from msgspec import inspect
from tools.docs.generated import FILES

from sedge_cloud.strategies import STRATEGIES, make_strategy
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.reference import tables
from sedge_protocol.host.toml import load_text

Toml: TypeAlias = "bool | int | float | str | list[Toml] | dict[str, Toml]"
# One value of each type of TOML; none of the strings is a choice.
VALUES: tuple[Toml, ...] = (True, 7, 7.5, "no such choice", ["no such choice"], {"no_such_key": 7})
IN_PYTHON: dict[type[inspect.Type], tuple[type, ...]] = {
    inspect.BoolType: (bool,),
    inspect.IntType: (int,),
    inspect.FloatType: (int, float),
    inspect.StrType: (str,),
    inspect.CustomType: (str,),
    inspect.VarTupleType: (list,),
    inspect.DictType: (dict,),
    inspect.StructType: (dict,),
}


Around: TypeAlias = tuple[tuple[inspect.StructType, inspect.Field, bool], ...]


class Key(NamedTuple):
    """A key, and the tables around it: the struct and field that hold each, and whether in an array."""

    around: Around
    struct: inspect.StructType
    field: inspect.Field

    @property
    def name(self) -> str:
        tables = "".join(f"{f.encode_name}{'[0]' * many}." for _, f, many in self.around)
        return f"{tables}{self.field.encode_name}"

    def file(self, value: "Toml | None", name: str = "") -> str:
        """A file with the least that it must have, and this value; without the key for None."""
        table = least(self.struct)
        table.pop(self.field.encode_name, None)
        if value is not None:
            table[name or self.field.encode_name] = value
        for struct, field, many in reversed(self.around):
            outer = least(struct)
            outer[field.encode_name] = [table] if many else table
            table = outer
        return "\n".join(f"{name} = {text(value)}" for name, value in table.items())


def keys(struct: type[msgspec.Struct], around: Around = ()) -> Iterator[Key]:
    kind = inspect.type_info(struct)
    assert isinstance(kind, inspect.StructType)
    for field in kind.fields:
        yield Key(around, kind, field)
        many = any(isinstance(one, inspect.VarTupleType) for one in options(field.type))
        for inner in tables(field.type):
            yield from keys(inner, (*around, (kind, field, many)))


def options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a value may have, but for None."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from options(inner)
        case inspect.UnionType(types=types):
            for part in types:
                yield from options(part)
        case inspect.NoneType():
            return
        case _:
            yield kind


def least(kind: inspect.StructType) -> "dict[str, Toml]":
    """A table with the keys that it must have."""
    return {field.encode_name: some(field.type) for field in kind.fields if field.required}


def some(kind: inspect.Type) -> Toml:
    """A value that fits."""
    one = next(options(kind))
    match one:
        case inspect.StrType():
            return "some"
        case inspect.CustomType():
            return "file"
        case inspect.LiteralType(values=values):
            return str(values[0])
        case inspect.StructType():
            return least(one)
        case inspect.VarTupleType(item_type=item):
            return [some(item)]
        case inspect.IntType() | inspect.FloatType():
            return next(inside(one))
        case _:
            raise NotImplementedError(one)


def inside(kind: inspect.IntType | inspect.FloatType) -> Iterator[float]:
    """The bounds, or the next numbers within them."""
    whole = isinstance(kind, inspect.IntType)
    if kind.ge is not None:
        yield kind.ge
    if kind.gt is not None:
        yield kind.gt + 1 if whole else math.nextafter(kind.gt, math.inf)
    if kind.le is not None:
        yield kind.le
    if kind.lt is not None:
        yield kind.lt - 1 if whole else math.nextafter(kind.lt, -math.inf)


def wrong(kind: inspect.Type) -> Iterator[tuple[str, Toml, Toml]]:
    """Values that do not fit: where in the value the fault is, the value, and the fault itself."""
    kinds = list(options(kind))
    admitted = tuple(one for option in kinds for one in IN_PYTHON.get(type(option), ()))
    yield from (("", value, value) for value in VALUES if type(value) not in admitted)
    if len(kinds) == 1:
        yield from (("", value, value) for value in outside(kinds[0]))
    if len(kinds) == 1 and isinstance(kinds[0], inspect.VarTupleType):
        for place, value, fault in wrong(kinds[0].item_type):
            yield f"[0]{place}", [value], fault


def outside(kind: inspect.Type) -> Iterator[Toml]:
    """Values of the right type beyond each bound."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            yield from (limit for limit in (kind.gt, kind.lt) if limit is not None)
            if kind.ge is not None:
                yield kind.ge - 1
            if kind.le is not None:
                yield kind.le + 1
            if isinstance(kind, inspect.FloatType):
                yield from (math.nan, math.inf, -math.inf)
        case inspect.StrType(min_length=fewest, pattern=pattern):
            yield from ["No such id"] * (pattern is not None) + [""] * bool(fewest)
        case inspect.VarTupleType(item_type=item, min_length=fewest, max_length=most):
            if fewest:
                yield []
            if most is not None:
                yield [some(item)] * (most + 1)
        case _:
            return


def text(value: Toml) -> str:
    """A value as TOML has it on one line."""
    match value:
        case dict():
            return f"{{ {', '.join(f'{key} = {text(one)}' for key, one in value.items())} }}"
        case list():
            return f"[{', '.join(map(text, value))}]"
        case float():
            return repr(value)
        case _:
            return json.dumps(value)


def refusal(struct: type[msgspec.Struct], file: str) -> str:
    """What the loader says of a file, in one line."""
    with pytest.raises(ConfigError) as error:
        load_text(file, struct, "file.toml")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("file", FILES)
def test_a_key_has_the_types_and_bounds_of_its_struct(file: str) -> None:
    struct = FILES[file]
    for key in keys(struct):
        for place, value, fault in wrong(key.field.type):
            found = refusal(struct, key.file(value))
            start = f"file.toml: {key.name}{place}: found {fault!r}, expected "
            assert found.startswith(start), found
        for kind in options(key.field.type):
            if isinstance(kind, inspect.IntType | inspect.FloatType):
                for number in inside(kind):
                    load_text(key.file(number), struct, "file.toml")


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_option_has_the_type_and_bounds_of_its_strategy(name: str) -> None:
    kind = inspect.type_info(STRATEGIES[name])
    assert isinstance(kind, inspect.StructType)
    for option in kind.fields:
        for _, value, _ in wrong(option.type):
            with pytest.raises(ConfigError) as error:
                make_strategy(name, {option.name: value})
            assert error.value.key == option.name


@pytest.mark.parametrize("file", FILES)
def test_a_key_that_is_unknown_or_missing(file: str) -> None:
    struct = FILES[file]
    for key in keys(struct):
        stranger = f"{key.name.removesuffix(key.field.encode_name)}no_such_key"
        found = refusal(struct, key.file(7, "no_such_key"))
        if not key.field.required:
            assert found.startswith(f"file.toml: {stranger}: unknown key, expected "), found
            load_text(key.file(None), struct, "file.toml")
            continue
        missing = refusal(struct, key.file(None))
        assert missing.startswith(f"file.toml: {key.name}: missing, expected "), missing
