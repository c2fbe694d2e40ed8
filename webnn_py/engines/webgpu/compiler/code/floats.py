"""Rules that make float operators correct for NaN and infinities.

WGSL lets drivers assume that NaN and infinities do not occur: `max` may return either operand, `!=`
of NaN may be false, `x == x` and `0 * x` may be folded, and a select by a comparison may become a
`max`. So NaN is detected by its bits, and operators whose result depends on it are replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from webnn_py.engines.webgpu.compiler.code import wgsl
from webnn_py.engines.webgpu.compiler.code.wgsl import Expression, Number, Operand

RULES: dict[str, str] = {
    "max": "wn_max({a}, {b})",
    "min": "wn_min({a}, {b})",
    "clamp": "wn_held({a}, {b}, {c})",
    "sign": "wn_sign({a})",
    "==": "wn_equal({a}, {b})",
    "!=": "!wn_equal({a}, {b})",
    "<=": "({a} <= {b}) & !wn_is_nan({a})",
    ">=": "({a} >= {b}) & !wn_is_nan({a})",
}
"""Replacements of operators and functions for floats {a}, {b}, {c}."""

FOR_INTEGERS = {"wn_above": ">", "wn_below": "<", "wn_scaled": "*"}
"""Operators on integers that correspond to functions of floats."""

MAX_RECIPROCAL_ARGUMENT = 8.0e37
"""A little less than 2^126: reciprocals of larger numbers are subnormal, and drivers flush them."""


def rewritten(
    name: str, arguments: Sequence[Expression], known: Mapping[str, float]
) -> Expression | None:
    """Return an operator or function rewritten for floats; None to leave it as it is.

    Args:
        name: Its name.
        arguments: Its arguments.
        known: Operands with a known value, and that value.
    """
    rule = RULES.get(name)
    if name in ("-", "*", "/"):
        a, b = arguments
        rule = _arithmetic(name, a, b, known)
    if rule is None:
        return None
    return wgsl.filled(wgsl.parse(rule), dict(zip("abc", arguments, strict=False)))


def _arithmetic(name: str, a: Expression, b: Expression, known: Mapping[str, float]) -> str | None:
    """Return the rule for arithmetic that drivers fold wrongly: x - x, x / x, 0 and infinities."""
    size_a, size_b = (_size(part, known) for part in (a, b))
    if name == "-":
        return "{a} - wn_settled({b})" if a == b else None
    if name == "*":
        if size_a == 0:
            return "wn_scaled({b}, {a})"
        return "wn_scaled({a}, {b})" if size_b == 0 else None
    if a == b:
        return "wn_div({a}, wn_settled({b}))"
    if size_a == 0:
        return "wn_scaled(1.0 / {b}, {a})"
    if size_b == 0:
        return "{a} * bitcast<f32>(bitcast<u32>({b}) | 0x7f800000u)"
    if size_b == math.inf:
        return "wn_scaled({a}, 0.0)"
    # Of such a number by a large one nothing is left that drivers keep.
    small = size_a is not None and size_a <= 1
    moderate = size_b is not None and size_b <= MAX_RECIPROCAL_ARGUMENT
    return None if small or moderate else "wn_div({a}, {b})"


def _size(expression: Expression, known: Mapping[str, float]) -> float | None:
    """Return the absolute value of a number or of an operand with a known value, else None."""
    match expression:
        case Operand(name) if name in known:
            return abs(known[name])
        case Number(text):
            return abs(float(text.removesuffix("f")))
    return None


FUNCTIONS = {
    "wn_is_nan": (
        "fn wn_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }"
    ),
    "wn_is_inf": (
        "fn wn_is_inf(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }"
    ),
    "wn_max": """fn wn_max(a: f32, b: f32) -> f32 {
  return select(select(max(a, b), b, wn_is_nan(b)), a, wn_is_nan(a));
}""",
    "wn_min": """fn wn_min(a: f32, b: f32) -> f32 {
  return select(select(min(a, b), b, wn_is_nan(b)), a, wn_is_nan(a));
}""",
    "wn_sign": """fn wn_sign(x: f32) -> f32 {
  return select(sign(x), x, wn_is_nan(x));
}""",
    "wn_above": """fn wn_above(a: f32, b: f32) -> bool {
  // Whether a takes the place of b as the greatest; NaN is above all numbers.
  return (a > b) | (wn_is_nan(a) & !wn_is_nan(b));
}""",
    "wn_below": """fn wn_below(a: f32, b: f32) -> bool {
  return (a < b) | (wn_is_nan(a) & !wn_is_nan(b));
}""",
    "wn_equal": """fn wn_equal(a: f32, b: f32) -> bool {
  return (a == b) & !wn_is_nan(a);
}""",
    "wn_held": """fn wn_held(x: f32, low: f32, high: f32) -> f32 {
  return select(min(max(x, low), high), x, wn_is_nan(x));
}""",
    "wn_div": """fn wn_div(a: f32, b: f32) -> f32 {
  // Above 2^126 a driver may divide by infinity.
  let scale = select(1.0, 0.25, abs(b) > 8.0e37);
  return (a * scale) / (b * scale);
}""",
    "wn_scaled": """fn wn_scaled(x: f32, factor: f32) -> f32 {
  let no_number = (factor == 0.0) & ((bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u);
  return select(x * factor, wn_bits(0x7fc00000u), no_number);
}""",
}
"""WGSL functions on floats, for the prelude."""
