"""The mutants of a module, each with one change.

A comparison, arithmetic or boolean operator is replaced, a constant is off by one, a condition is negated,
a statement is deleted, or a function returns None.
"""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
# Parts that are not mutated: what a type checker already checks, and messages for people.
TYPES = ("annotation", "returns")  # except calls, as in Annotated[int, Meta(ge=1)]
SKIPPED = {"decorator_list", "exc", "frozen", "strict"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path
    line: int
    before: str
    after: str

    def diff(self) -> str:
        """Return the change as a unified diff without its header."""
        lines = self.before.splitlines(), self.after.splitlines()
        return "\n".join([*difflib.unified_diff(*lines, str(self.path), n=1, lineterm="")][2:])


def alternatives(node: ast.AST) -> Iterator[str]:
    """Yield the source texts that may replace a node."""
    match node:
        case ast.Compare(left, ops, rights):
            for place, op in enumerate(ops):
                other = [*ops[:place], COMPARISONS[type(op)](), *ops[place + 1 :]]
                yield ast.unparse(ast.Compare(left, other, rights))
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC:
            yield ast.unparse(ast.BinOp(left, ARITHMETIC[type(op)](), right))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield ast.unparse(operand)
        case ast.Constant(bool(value)):
            yield repr(not value)
        case ast.Constant(int(value) | float(value)):
            yield repr(value + 1)
        case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue():
            yield "pass"
        case _:
            pass


def changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each replaceable node at or below this one, with its replacement."""
    yield from ((node, text) for text in alternatives(node))
    match node:
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, f"not {ast.unparse(test)}"
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"
        case _:
            pass
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.JoinedStr) or {name, getattr(child, "arg", "")} & SKIPPED:
                continue
            if child and name in TYPES:
                calls = [n for n in ast.walk(child) if isinstance(n, ast.Call)]
                yield from (change for call in calls for change in changes(call))
            elif isinstance(child, ast.AST):
                yield from changes(child)


def mutants_of(root: Path, path: Path) -> list[Mutant]:
    """Return every mutant of the module at ``path``, which is relative to ``root``."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node, text in changes(ast.parse(source)):
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno and node.end_col_offset
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        after = source[:begin] + text.encode() + source[end:]
        found.append(Mutant(path, node.lineno, source.decode(), after.decode()))
    return found
