"""Floats that are not numbers, as the reference has them.

WGSL lets drivers assume that NaN and infinities do not occur: `max` may give either operand, `!=`
of NaN may be false, `x == x` and `0 * x` may be folded, and a choice by a comparison made a `max`.
So NaN is told by its bits, and what a declaration says in WGSL has a counterpart here where a
result hangs on it.
"""

from __future__ import annotations

import math

EXPRESSIONS: dict[str, str] = {
    "max({a}, {b})": "wn_max({a}, {b})",
    "min({a}, {b})": "wn_min({a}, {b})",
    "max({input}, {T}(0))": "select(max({input}, 0.0), {input}, wn_is_nan({input}))",
    "{a} / {b}": "wn_div({a}, {b})",
    "sign({input})": "select(sign({input}), {input}, wn_is_nan({input}))",
    "select({input}, {slope} * {input}, {input} < {T}(0))": (
        "select({input}, wn_scaled({input}, {slope}), {input} < 0.0)"
    ),
    "{a} > {b}": "wn_above({a}, {b})",
    "{a} < {b}": "wn_below({a}, {b})",
    "wn_flag({a} == {b})": "wn_flag(wn_equal({a}, {b}))",
    "wn_flag({a} != {b})": "wn_flag(!wn_equal({a}, {b}))",
    "wn_flag({a} <= {b})": "wn_flag(({a} <= {b}) & !wn_is_nan({a}))",
    "wn_flag({a} >= {b})": "wn_flag(({a} >= {b}) & !wn_is_nan({a}))",
}
"""From the expression for integers to the one for floats."""

TWICE: dict[str, str] = {
    "{a} - {b}": "{a} - wn_settled({b})",
    "{a} / {b}": "wn_div({a}, wn_settled({b}))",
}
"""The expressions for one operand given twice: infinity less infinity is not 0."""

KNOWN: dict[tuple[str, int, float], str] = {
    ("{a} * {b}", 0, 0.0): "wn_scaled({b}, {a})",
    ("{a} * {b}", 1, 0.0): "wn_scaled({a}, {b})",
    ("{a} / {b}", 0, 0.0): "wn_scaled(1.0 / {b}, {a})",
    ("{a} / {b}", 1, 0.0): "{a} * bitcast<f32>(bitcast<u32>({b}) | 0x7f800000u)",
    ("{a} / {b}", 1, math.inf): "wn_scaled({a}, 0.0)",
}
"""The expressions where an operand (by its number) is known to be this number, of either sign."""

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
