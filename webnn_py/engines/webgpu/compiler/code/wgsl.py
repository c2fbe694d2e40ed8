"""Expressions of WGSL as trees: read from text, compared, filled in, and written again.

The text is WGSL with operands in braces. Only expressions that a declaration may need are read:
operators, calls, numbers, and the members of a vector.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operand:
    """What stands in braces."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` or `!` before a value."""

    operator: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator between two values."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """A function or a type's constructor; that of the type `{T}` is named so."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A component of a vector."""

    value: Expression
    name: str


Expression = Operand | Number | Unary | Binary | Call | Member

RESULT = "{T}"
"""The type of an operator's result, where it is called as a constructor."""

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<operand>\{\w+\})
  | (?P<number>0x[0-9a-f]+u? | \d+\.\d*(?:e[+-]?\d+)?f? | \d+e[+-]?\d+f? | \d+(?:u|li|lu)?)
  | (?P<name>(?:bitcast|vec[234])<\w+> | [A-Za-z_]\w*)
  | (?P<sign><= | >= | == | != | && | \|\| | [-+*/%<>&|!(),.])
  | (?P<end>$)
    )""",
    re.VERBOSE,
)

_EQUALITY, _ORDER = ("==", "!="), ("<", ">", "<=", ">=")
_SUMS, _PRODUCTS = ("+", "-"), ("*", "/", "%")
_LEVELS: tuple[tuple[str, ...], ...]
_LEVELS = (("||",), ("&&",), ("|",), ("&",), _EQUALITY, _ORDER, _SUMS, _PRODUCTS)
_BINDING = {operator: level for level, row in enumerate(_LEVELS) for operator in row}
"""How tightly a binary operator binds."""

COMPARISONS = frozenset(_EQUALITY + _ORDER)
ARITHMETIC = frozenset(_SUMS + _PRODUCTS)


@functools.cache
def parse(text: str) -> Expression:
    """The expression that a text is.

    Raises:
        ValueError: It is none, or none of those that are read.
    """
    reader = _Reader(text)
    expression = reader.binary(0)
    if reader.kind != "end":
        raise reader.error()
    return expression


class _Reader:
    """Goes through the tokens of a text; `kind` and `token` are the next one's."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._place = 0
        self.take()

    def error(self) -> ValueError:
        """What cannot be read."""
        rest = self.text[self._place - len(self.token) :].strip()
        where = repr(rest) if rest else "its end"
        return ValueError(f"WGSL expression {self.text!r} cannot be read from {where} on")

    def take(self) -> str:
        """Step over the next token and return it."""
        taken = getattr(self, "token", "")
        found = _TOKEN.match(self.text, self._place)
        if found is None:
            self.token = self.text[self._place :]
            self._place = len(self.text)
            raise self.error()
        self.kind = str(found.lastgroup)
        self.token = found[self.kind]
        self._place = found.end()
        return taken

    def expect(self, token: str) -> None:
        """Step over this token."""
        if self.token != token:
            raise self.error()
        self.take()

    def binary(self, level: int) -> Expression:
        """Operators of this level and of those that bind tighter."""
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.kind == "sign" and self.token in _LEVELS[level]:
            operator = self.take()
            left = Binary(operator, left, self.binary(level + 1))
        return left

    def unary(self) -> Expression:
        """A value with what stands before it."""
        if self.kind == "sign" and self.token in ("-", "!"):
            return Unary(self.take(), self.unary())
        value = self.primary()
        while self.token == ".":
            self.take()
            if self.kind != "name":
                raise self.error()
            value = Member(value, self.take())
        return value

    def primary(self) -> Expression:
        """An operand, number or call, or what stands in parentheses."""
        if self.kind == "number":
            return Number(self.take())
        if self.kind == "operand" and self.token != RESULT:
            return Operand(self.take()[1:-1])
        if self.kind in ("name", "operand"):
            function = self.take()
            self.expect("(")
            arguments: list[Expression] = []
            while self.token != ")":
                if arguments:
                    self.expect(",")
                arguments.append(self.binary(0))
            self.take()
            return Call(function, tuple(arguments))
        self.expect("(")
        inner = self.binary(0)
        self.expect(")")
        return inner


def filled(expression: Expression, parts: Mapping[str, Expression]) -> Expression:
    """The expression with others in the place of operands of these names."""
    match expression:
        case Operand(name):
            return parts.get(name, expression)
        case Unary(operator, value):
            return Unary(operator, filled(value, parts))
        case Binary(operator, left, right):
            return Binary(operator, filled(left, parts), filled(right, parts))
        case Call(function, arguments):
            return Call(function, tuple(filled(argument, parts) for argument in arguments))
        case Member(value, name):
            return Member(filled(value, parts), name)
    return expression


def written(expression: Expression) -> str:
    """The expression as WGSL, with its operands in braces.

    What is put there must be fit to stand anywhere, as a name, a call or a number are.
    """
    match expression:
        case Operand(name):
            return f"{{{name}}}"
        case Number(text):
            return text
        case Unary(operator, value):
            return operator + _closed(value, isinstance(value, (Call, Member)))
        case Binary(operator, left, right):
            return f"{_side(left, operator, 0)} {operator} {_side(right, operator, 1)}"
        case Call(function, arguments):
            return f"{function}({', '.join(map(written, arguments))})"
        case Member(value, name):
            return f"{_closed(value, not isinstance(value, (Unary, Binary)))}.{name}"


def _closed(expression: Expression, bare: bool) -> str:
    text = written(expression)
    return text if bare else f"({text})"


def _side(expression: Expression, operator: str, side: int) -> str:
    """An operand of a binary operator; WGSL wants parentheses where C would do without."""
    if not isinstance(expression, Binary):
        return written(expression)
    inner = expression.operator
    tighter = _BINDING[inner] >= _BINDING[operator] + side
    plain = inner in ARITHMETIC and (operator in ARITHMETIC or operator in COMPARISONS)
    logical = operator in ("&&", "||") and (inner in COMPARISONS or inner == operator)
    return _closed(expression, tighter and (plain or logical))
