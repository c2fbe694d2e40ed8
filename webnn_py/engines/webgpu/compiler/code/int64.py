"""64-bit integers where the device lacks shader-int64: pairs of a low and a high word.

A pair is a `vec2<u32>` with the layout of the integer in memory. WGSL's operators treat its words
separately, so functions replace them.
"""

from __future__ import annotations

from collections.abc import Sequence

from webnn_py.engines.webgpu.compiler.code import wgsl
from webnn_py.engines.webgpu.program.pieces import END_LOOP, loop
from webnn_py.engines.webgpu.program.storage import PAIR, Storage

RULES: dict[str, str] = {
    "+": "wn_pair_add({a}, {b})",
    "-": "wn_pair_sub({a}, {b})",
    "*": "wn_pair_mul({a}, {b})",
    "/": "wn_pair_div_{S}({a}, {b})",
    "neg": "wn_pair_neg({a})",
    "abs": "wn_pair_abs({a})",
    "sign": "wn_pair_sign({a})",
    "max": "wn_pair_max_{S}({a}, {b})",
    "min": "wn_pair_min_{S}({a}, {b})",
    "wn_pow": "wn_pair_pow_{S}({a}, {b})",
    "<": "wn_pair_less_{S}({a}, {b})",
    ">": "wn_pair_less_{S}({b}, {a})",
    "<=": "!wn_pair_less_{S}({b}, {a})",
    ">=": "!wn_pair_less_{S}({a}, {b})",
    "==": "all({a} == {b})",
    "!=": "any({a} != {b})",
}
"""Replacements of operators for pairs {a} and {b}; {S} is "i" if they are signed, else "u"."""


def rewritten(
    name: str, arguments: Sequence[wgsl.Expression], storage: Storage
) -> wgsl.Expression | None:
    """Return an operator or function rewritten for pairs; None if pairs lack it."""
    rule = RULES.get(name)
    if rule is None:
        return None
    parts = dict(zip("ab", arguments, strict=False))
    return wgsl.filled(wgsl.parse(rule.replace("{S}", _sign(storage))), parts)


def cast(source: Storage, target: Storage) -> str:
    """Return the WGSL template that converts `{input}` to or from a pair, or between pairs."""
    if source.compute == target.compute:
        return "{input}"
    if target.compute == PAIR:
        match source.compute:
            case "f32":
                return f"wn_pair_saturate_{_sign(target)}({{input}})"
            case "i32":
                return "wn_pair_extend({input})"
        return "vec2<u32>({input}, 0u)"
    if target.compute == "f32":
        return f"wn_pair_to_f32_{_sign(source)}({{input}})"
    return target.wrap(f"bitcast<{target.compute}>({{input}}.x)")


def _sign(storage: Storage) -> str:
    return "u" if storage.data_type.startswith("u") else "i"


FUNCTIONS = {
    "wn_pair_add": """fn wn_pair_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}""",
    "wn_pair_sub": """fn wn_pair_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}""",
    "wn_pair_neg": """fn wn_pair_neg(a: vec2<u32>) -> vec2<u32> {
  return wn_pair_sub(vec2<u32>(), a);
}""",
    "wn_pair_wide": """fn wn_pair_wide(a: u32, b: u32) -> vec2<u32> {
  // The whole product of two words, from products of half words.
  let low = (a & 0xffffu) * (b & 0xffffu);
  let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
  let high = (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
  return vec2<u32>((right << 16u) | (low & 0xffffu), high);
}""",
    "wn_pair_mul": """fn wn_pair_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = wn_pair_wide(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}""",
    "wn_pair_less_u": """fn wn_pair_less_u(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}""",
    "wn_pair_less_i": """fn wn_pair_less_i(a: vec2<u32>, b: vec2<u32>) -> bool {
  let flip = vec2<u32>(0u, 0x80000000u);
  return wn_pair_less_u(a ^ flip, b ^ flip);
}""",
    "wn_pair_max_u": """fn wn_pair_max_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, wn_pair_less_u(a, b));
}""",
    "wn_pair_max_i": """fn wn_pair_max_i(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, wn_pair_less_i(a, b));
}""",
    "wn_pair_min_u": """fn wn_pair_min_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, wn_pair_less_u(a, b));
}""",
    "wn_pair_min_i": """fn wn_pair_min_i(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(b, a, wn_pair_less_i(a, b));
}""",
    "wn_pair_abs": """fn wn_pair_abs(a: vec2<u32>) -> vec2<u32> {
  return select(a, wn_pair_neg(a), (a.y >> 31u) != 0u);
}""",
    "wn_pair_sign": """fn wn_pair_sign(a: vec2<u32>) -> vec2<u32> {
  let positive = vec2<u32>(select(0u, 1u, any(a != vec2<u32>())), 0u);
  return select(positive, vec2<u32>(0xffffffffu), (a.y >> 31u) != 0u);
}""",
    "wn_pair_div_u": """fn wn_pair_div_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  // As WGSL has it for its own integers, a divided by 0 is a.
  if (all(b == vec2<u32>())) { return a; }
  if ((a.y | b.y) == 0u) { return vec2<u32>(a.x / b.x, 0u); }
  var quotient = vec2<u32>();
  var rest = vec2<u32>();
  """
    + loop("for (var i = 0u; i < 64u; i++)", 64)
    + """
    let bit = 31u - (i & 31u);
    let word = select(a.y, a.x, i >= 32u);
    let carry = (rest.y >> 31u) != 0u;
    rest = vec2<u32>((rest.x << 1u) | ((word >> bit) & 1u), (rest.y << 1u) | (rest.x >> 31u));
    if (carry || !wn_pair_less_u(rest, b)) {
      rest = wn_pair_sub(rest, b);
      quotient |= select(vec2<u32>(0u, 1u << bit), vec2<u32>(1u << bit, 0u), i >= 32u);
    }
  """
    + END_LOOP
    + """
  return quotient;
}""",
    "wn_pair_div_i": """fn wn_pair_div_i(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let quotient = wn_pair_div_u(wn_pair_abs(a), wn_pair_abs(b));
  return select(quotient, wn_pair_neg(quotient), ((a.y ^ b.y) >> 31u) != 0u);
}""",
    "wn_pair_pow_u": """fn wn_pair_pow_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  var r = vec2<u32>(1u, 0u);
  var base = a;
  var n = b;
  """
    + loop("while (any(n != vec2<u32>()))", 64)
    + """
    if ((n.x & 1u) != 0u) { r = wn_pair_mul(r, base); }
    base = wn_pair_mul(base, base);
    n = vec2<u32>((n.x >> 1u) | (n.y << 31u), n.y >> 1u);
  """
    + END_LOOP
    + """
  return r;
}""",
    "wn_pair_pow_i": """fn wn_pair_pow_i(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if ((b.y >> 31u) == 0u) { return wn_pair_pow_u(a, b); }
  if (all(a == vec2<u32>(1u, 0u))) { return a; }
  if (any(a != vec2<u32>(0xffffffffu))) { return vec2<u32>(); }
  return select(vec2<u32>(1u, 0u), a, (b.x & 1u) != 0u);
}""",
    "wn_pair_extend": """fn wn_pair_extend(x: i32) -> vec2<u32> {
  return vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u));
}""",
    "wn_pair_shift_left": """fn wn_pair_shift_left(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  if (n == 0u) { return a; }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}""",
    "wn_pair_to_f32_u": """fn wn_pair_to_f32_u(a: vec2<u32>) -> f32 {
  if (all(a == vec2<u32>())) { return 0.0; }
  let zeros = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
  let top = wn_pair_shift_left(a, zeros);
  // 24 bits are kept; the 40 below decide how the last one is rounded.
  let kept = top.y >> 8u;
  let rest = top.y & 0xffu;
  let above = rest > 0x80u || (rest == 0x80u && (top.x != 0u || (kept & 1u) != 0u));
  return bitcast<f32>(((189u - zeros) << 23u) + kept + select(0u, 1u, above));
}""",
    "wn_pair_to_f32_i": """fn wn_pair_to_f32_i(a: vec2<u32>) -> f32 {
  let size = wn_pair_to_f32_u(wn_pair_abs(a));
  return select(size, -size, (a.y >> 31u) != 0u);
}""",
    "wn_pair_truncate": """fn wn_pair_truncate(x: f32) -> vec2<u32> {
  // For 0 <= x < 2^64.
  let bits = bitcast<u32>(x);
  let exponent = bits >> 23u;
  let digits = (bits & 0x7fffffu) | 0x800000u;
  if (exponent < 127u) { return vec2<u32>(); }
  if (exponent < 150u) { return vec2<u32>(digits >> (150u - exponent), 0u); }
  return wn_pair_shift_left(vec2<u32>(digits, 0u), exponent - 150u);
}""",
    "wn_pair_saturate_u": """fn wn_pair_saturate_u(x: f32) -> vec2<u32> {
  if (wn_is_nan(x) || x <= 0.0) { return vec2<u32>(); }
  if (x >= 18446744073709551616.0) { return vec2<u32>(0xffffffffu); }
  return wn_pair_truncate(x);
}""",
    "wn_pair_saturate_i": """fn wn_pair_saturate_i(x: f32) -> vec2<u32> {
  if (wn_is_nan(x)) { return vec2<u32>(); }
  if (x >= 9223372036854775808.0) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x <= -9223372036854775808.0) { return vec2<u32>(0u, 0x80000000u); }
  let size = wn_pair_truncate(abs(x));
  return select(size, wn_pair_neg(size), x < 0.0);
}""",
}
"""WGSL functions on pairs, for the prelude."""
