"""Negation of integers, so that no driver recognises it.

NVIDIA's compiler makes `max(max(-a, -b), c)` of int32 one instruction, and minima likewise; its
results are wrong (H100, driver 580.159). It also recognises `0 - a`, `a * -1`, `~a + 1` and
`-abs(a)`. So a negation is a product with -1, computed in a way that compilers do not see through,
which is right there. It takes four instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webnn_py.engines.webgpu.compiler.code.wgsl import Call, Expression, Operand


def is_minus_one(number: float) -> bool:
    """Return whether a product of integers with this number is a negation."""
    return number in (-1, 2**32 - 1, 2**64 - 1)


def rewritten(
    name: str, arguments: Sequence[Expression], compute: str, known: Mapping[str, float]
) -> Expression | None:
    """Return an operator or function as it is written for integers; None to leave it as it is.

    Args:
        name: The operator's or function's name.
        arguments: Its arguments.
        compute: The WGSL type of the arguments.
        known: Operands that are a number known at build.
    """
    if name == "abs":
        return Call(f"wn_abs_{compute}", tuple(arguments))
    negated = _negated(name, arguments, known)
    return None if negated is None else Call(f"wn_neg_{compute}", (negated,))


def _negated(
    name: str, arguments: Sequence[Expression], known: Mapping[str, float]
) -> Expression | None:
    """Return the argument that an operator negates, or None."""
    if name == "neg":
        return arguments[0]
    if len(arguments) != 2:
        return None
    a, b = arguments
    first, second = (_number(part, known) for part in arguments)
    if name == "-" and first == 0:
        return b
    if name in ("*", "/") and second is not None and is_minus_one(second):
        return a
    return b if name == "*" and first is not None and is_minus_one(first) else None


def _number(expression: Expression, known: Mapping[str, float]) -> float | None:
    """Return the known value of an operand, or None."""
    return known.get(expression.name) if isinstance(expression, Operand) else None


FUNCTIONS = {
    "wn_ones": """fn wn_ones(x: u32) -> u32 {
  // All bits set, whatever x is: the square of an odd number is 1 modulo 8.
  let odd = (x << 1u) | 1u;
  return ((odd * odd) & 7u) ^ 0xfffffffeu;
}""",
    "wn_neg_u32": "fn wn_neg_u32(x: u32) -> u32 { return x * wn_ones(x); }",
    "wn_neg_i32": """fn wn_neg_i32(x: i32) -> i32 {
  return x * bitcast<i32>(wn_ones(bitcast<u32>(x)));
}""",
    "wn_neg_u64": """fn wn_neg_u64(x: u64) -> u64 {
  let ones = u64(wn_ones(u32(x & 0xfffffffflu)));
  return x * ((ones << 32u) | ones);
}""",
    "wn_neg_i64": """fn wn_neg_i64(x: i64) -> i64 {
  return bitcast<i64>(wn_neg_u64(bitcast<u64>(x)));
}""",
    "wn_abs_i32": """fn wn_abs_i32(x: i32) -> i32 {
  return select(x, wn_neg_i32(x), x < 0);
}""",
    "wn_abs_i64": """fn wn_abs_i64(x: i64) -> i64 {
  return select(x, wn_neg_i64(x), x < 0li);
}""",
}
"""WGSL functions on integers, for the prelude."""
