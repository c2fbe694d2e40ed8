"""Declared expressions of operators, rewritten for each data type.

An operator declares its WGSL once, for types that WGSL has. Here every part of it gets a type, and
operators that WGSL lacks or leaves undefined for that type are replaced: 64-bit integers as pairs
of words (`int64`), NaN and infinities (`floats`), the range of narrow integers, negation
(`integers`), functions that the prelude has for several types, conversions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from webnn_py.engines.webgpu.compiler.code import floats, int64, integers, prelude, wgsl
from webnn_py.engines.webgpu.compiler.code.wgsl import (
    ARITHMETIC,
    COMPARISONS,
    RESULT,
    Binary,
    Call,
    Expression,
    Number,
    Operand,
    Unary,
)
from webnn_py.engines.webgpu.program.pieces import printed
from webnn_py.engines.webgpu.program.storage import PAIR, Features, Storage, storage_of

BOOL = Storage("bool", "", "bool", 1, 0)
"""The type of a comparison, which no buffer holds."""

_NATURAL = {
    storage.compute: storage
    for data_type in ("float32", "int32", "uint32", "int64", "uint64")
    for storage in (storage_of(data_type, Features()),)
} | {"bool": BOOL}
"""The storage that stands for each WGSL type."""

_OF_NUMBERS = {"abs": 1, "sign": 1, "max": 2, "min": 2, "clamp": 3}
_OF_FLOATS = {"ceil": 1, "floor": 1, "round": 1, "sqrt": 1}
"""Functions of WGSL with arguments and result of one type, and how many arguments they take."""

_SUFFIXES = {"u": "u32", "li": "i64", "lu": "u64", "f": "f32"}

Typed = tuple[Expression, Storage | None]
"""An expression and its type; None for a number such as `1`, which takes its neighbour's type."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The types and known values of the names in an expression.

    Attributes:
        storage: Type of the operands and options that `others` does not name.
        result: The type `{T}`; None for the operands' type.
        others: Operands with types of their own.
        known: Operands that are numbers known at build, with these numbers.
        same: Operands that are the same value as another operand, with that operand.
        absent: Options without a value; `max` or `min` of one and a value is the value.
    """

    storage: Storage
    result: Storage | None = None
    others: tuple[tuple[str, Storage], ...] = ()
    known: tuple[tuple[str, float], ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def template(text: str, scope: Scope) -> str:
    """Return a declared expression in WGSL for operands of these types, with names in braces.

    Raises:
        ValueError: It cannot be written so; the message says which part.
    """
    return wgsl.written(_Writer(text, scope).whole())


def adapted(text: str, storage: Storage) -> str:
    """Return `template` for operands that all have one storage."""
    return template(text, Scope(storage))


def express(text: str, storage: Storage, **names: str) -> str:
    """Return a declared expression for operands of one storage, with names replaced.

    Replacements must need no parentheses, as a name, a call or a number.
    """
    return adapted(text, storage).format(**names)


class _Writer:
    """Rewriter of one expression, from its leaves up."""

    def __init__(self, text: str, scope: Scope) -> None:
        self.text = text
        self.result = scope.result or scope.storage
        self.scope = scope
        self.others = dict(scope.others)
        self.known = dict(scope.known)

    def whole(self) -> Expression:
        """Return the rewritten expression."""
        again = {name: Operand(first) for name, first in self.scope.same}
        made, kind = self.visit(wgsl.filled(wgsl.parse(self.text), again))
        if kind is not None and self.scope.result and kind.compute != self.result.compute:
            raise self._error(f"is of {kind.data_type}, and its result of {self.result.data_type}")
        return made if kind else _literal(made, self.result)

    def visit(self, expression: Expression) -> Typed:
        """Return the rewritten part of an expression and its type."""
        match expression:
            case Operand(name):
                return expression, self.others.get(name, self.scope.storage)
            case Number(text):
                return expression, _type_of_number(text)
            case Unary("-", value):
                made, kind = self._alike("-", [self.visit(value)])
                return self._rule("neg", Unary("-", *made), made, kind)
            case Unary("!", value):
                (inner,) = self._logical("!", [value])
                return Unary("!", inner), BOOL
            case Binary(operator, left, right) if operator in ARITHMETIC | COMPARISONS:
                return self._binary(operator, [self.visit(left), self.visit(right)])
            case Binary(operator, left, right):
                return Binary(operator, *self._logical(operator, [left, right])), BOOL
            case Call(function, arguments):
                return self._call(function, arguments)
        raise self._error(f"{wgsl.written(expression)!r} may not stand in a declaration")

    def _call(self, function: str, arguments: Sequence[Expression]) -> Typed:
        if function in ("max", "min"):
            absent = [Operand(name) for name in self.scope.absent]
            there = [argument for argument in arguments if argument not in absent]
            if len(there) == 1 < len(arguments):
                return self.visit(there[0])
        typed = [self.visit(argument) for argument in arguments]
        if function == RESULT and len(typed) == 1:
            return self._converted(typed[0])
        if function == "select" and len(typed) == 3:
            made, kind = self._alike(function, typed[:2])
            (condition,) = self._logical(function, arguments[2:])
            return Call(function, (*made, condition)), kind
        if (_OF_NUMBERS | _OF_FLOATS).get(function) == len(typed):
            made, kind = self._alike(function, typed)
            if function in _OF_FLOATS and kind.compute != "f32":
                raise self._error(f"{function} is for floats, not for {kind.data_type}")
            if function == "abs" and kind.data_type.startswith("uint"):
                return made[0], kind
            return self._rule(function, Call(function, tuple(made)), made, kind)
        return self._prelude(function, typed)

    def _prelude(self, function: str, typed: list[Typed]) -> Typed:
        """Return a call of the prelude's function for the type of the arguments."""
        signature = prelude.signature(function)
        if signature is None or not _NATURAL.keys() >= {*signature[0], signature[1]}:
            raise self._error(f"there is no function {function!r} of {len(typed)} arguments")
        parameters, returned = signature
        given = [None if kind is None else kind.compute for _, kind in typed]
        first = next((compute for compute in given if compute), "f32")
        if parameters[0] == "f32" and first not in ("f32", "bool"):
            return self._for_integers(function, typed)
        fits = len(given) == len(parameters) and all(
            compute in (None, wanted) for compute, wanted in zip(given, parameters, strict=True)
        )
        if not fits:
            shown = ", ".join(kind.data_type if kind else "a number" for _, kind in typed)
            raise self._error(f"{function} takes ({', '.join(parameters)}), got ({shown})")
        wanted = [_NATURAL[name] for name in parameters]
        made = [_literal(part, kind) for (part, _), kind in zip(typed, wanted, strict=True)]
        return Call(function, tuple(made)), _NATURAL[returned]

    def _for_integers(self, function: str, typed: list[Typed]) -> Typed:
        """Return the integer version of a function of floats."""
        made, kind = self._alike(function, typed)
        plain = floats.FOR_INTEGERS.get(function)
        if plain is not None:
            return self._binary(plain, [(part, kind) for part in made])
        own = f"{function}_{kind.compute}"
        if kind.compute != PAIR and prelude.signature(own) is None:
            raise self._error(f"{function} is for floats, not for {kind.data_type}")
        return self._rule(function, Call(own, tuple(made)), made, kind)

    def _binary(self, operator: str, typed: list[Typed]) -> Typed:
        made, kind = self._alike(operator, typed)
        expression, kind = self._rule(operator, Binary(operator, *made), made, kind)
        return expression, BOOL if operator in COMPARISONS else kind

    def _rule(
        self, name: str, plain: Expression, arguments: list[Expression], kind: Storage
    ) -> tuple[Expression, Storage]:
        """Return an operator or function rewritten for a type."""
        unsigned = kind.data_type.startswith("uint")
        if (unsigned and name in ("neg", "sign")) or (kind is BOOL and name not in ("==", "!=")):
            raise self._error(f"{name} is not for {kind.data_type}")
        if kind.compute == PAIR:
            pairs = int64.rewritten(name, arguments, kind)
            if pairs is None:
                raise self._error(f"{name} is not there for pairs of words: add it to int64.RULES")
            return pairs, kind
        if kind.compute == "f32":
            return floats.rewritten(name, arguments, self.known) or plain, kind
        plain = integers.rewritten(name, arguments, kind.compute, self.known) or plain
        if name in ("+", "-", "*", "/", "neg", "abs", "wn_pow"):
            wrapped = wgsl.parse(kind.wrap("{a}"))
            return wgsl.filled(wrapped, {"a": plain}), kind
        return plain, kind

    def _converted(self, typed: Typed) -> Typed:
        """Return a value converted to the result's type."""
        value, kind = typed
        if kind is None:
            return _literal(value, self.result), self.result
        conversion = wgsl.parse(prelude.cast(kind, self.result))
        return wgsl.filled(conversion, {"input": value}), self.result

    def _alike(self, name: str, typed: list[Typed]) -> tuple[list[Expression], Storage]:
        """Return arguments converted to one type, and that type: an operand's before a number's."""
        kinds = [kind for _, kind in typed if kind is not None]
        if not kinds:
            raise self._error(f"the numbers at {name!r} have no type; write {RESULT}(1)")
        chosen = next(
            (kind for part, kind in typed if kind is not None and not isinstance(part, Number)),
            kinds[0],
        )
        wide = chosen.compute == PAIR
        for kind in kinds:
            if kind.compute != chosen.compute or (wide and kind.data_type != chosen.data_type):
                raise self._error(f"{name!r} joins {chosen.data_type} and {kind.data_type}")
        return [part if kind else _literal(part, chosen) for part, kind in typed], chosen

    def _logical(self, name: str, arguments: Sequence[Expression]) -> list[Expression]:
        """Return arguments that must be booleans."""
        typed = [self.visit(argument) for argument in arguments]
        for _, kind in typed:
            if kind is not BOOL:
                shown = kind.data_type if kind else "a number"
                raise self._error(f"{name!r} takes a comparison, got {shown}")
        return [part for part, _ in typed]

    def _error(self, what: str) -> ValueError:
        return ValueError(f"WGSL expression {self.text!r}: {what}")


def _type_of_number(text: str) -> Storage | None:
    """Return the type of a literal by its form; None for a literal of any type."""
    if text.startswith("0x"):
        return _NATURAL["u32"] if text.endswith("u") else None
    for suffix, kind in _SUFFIXES.items():
        if text.endswith(suffix):
            return _NATURAL[kind]
    return _NATURAL["f32"] if "." in text or "e" in text else None


def _literal(expression: Expression, storage: Storage) -> Expression:
    """Return an untyped number as a literal of a type; return other expressions unchanged."""
    if isinstance(expression, Number) and _type_of_number(expression.text) is None:
        return wgsl.parse(printed(storage.literal(int(expression.text, 0))))
    return expression
