"""WGSL functions that expressions may call; a kernel gets those it uses.

They exist where WGSL's own are undefined (NaN, infinities, negative bases), overflow on the way to
a finite result, or differ from driver to driver.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from webnn_py.engines.webgpu.compiler.code import elementary, floats, int64, integers
from webnn_py.engines.webgpu.compiler.code.functions import PRELUDE, Function, names_with_prefix
from webnn_py.engines.webgpu.compiler.loop_bounds import iterations_of
from webnn_py.engines.webgpu.program.pieces import END_LOOP, Code, loop
from webnn_py.engines.webgpu.program.storage import PAIR, Storage

_OWN = {
    "wn_bits": "fn wn_bits(b: u32) -> f32 { return bitcast<f32>(b); }",
    "wn_flag": "fn wn_flag(x: bool) -> u32 { return select(0u, 1u, x); }",
    "wn_pow_i32": """fn wn_pow_i32(a: i32, b: i32) -> i32 {
  if (b < 0) { return select(select(0, select(1, -1, (b & 1) != 0), a == -1), 1, a == 1); }
  return bitcast<i32>(wn_pow_u32(bitcast<u32>(a), u32(b)));
}""",
    "wn_pow_u32": """fn wn_pow_u32(a: u32, b: u32) -> u32 {
  var r = 1u;
  var base = a;
  var n = b;
  """
    + loop("while (n != 0u)", 32)
    + """
    if ((n & 1u) != 0u) { r = r * base; }
    base = base * base;
    n = n >> 1u;
  """
    + END_LOOP
    + """
  return r;
}""",
    "wn_pow_i64": """fn wn_pow_i64(a: i64, b: i64) -> i64 {
  if (b < 0li) {
    return select(select(0li, select(1li, -1li, (b & 1li) != 0li), a == -1li), 1li, a == 1li);
  }
  return bitcast<i64>(wn_pow_u64(bitcast<u64>(a), bitcast<u64>(b)));
}""",
    "wn_pow_u64": """fn wn_pow_u64(a: u64, b: u64) -> u64 {
  var r = 1lu;
  var base = a;
  var n = b;
  """
    + loop("while (n != 0lu)", 64)
    + """
    if ((n & 1lu) != 0lu) { r = r * base; }
    base = base * base;
    n = n >> 1u;
  """
    + END_LOOP
    + """
  return r;
}""",
    "wn_half_bits": """fn wn_half_bits(x: f32) -> u32 {
  // float16, halves to the even one; pack2x16float may round or overflow otherwise.
  let sign = (bitcast<u32>(x) >> 16u) & 0x8000u;
  let size = bitcast<u32>(x) & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }
  if (size >= 0x38800000u) {
    let moved = size - 0x38000000u;
    return sign | ((moved + 0xfffu + ((moved >> 13u) & 1u)) >> 13u);
  }
  let shift = 126u - max(size >> 23u, 101u);
  let digits = (size & 0x7fffffu) | 0x800000u;
  let kept = digits >> shift;
  let rest = digits & ((1u << shift) - 1u);
  let half = 1u << (shift - 1u);
  let above = rest > half || (rest == half && (kept & 1u) != 0u);
  return sign | (kept + select(0u, 1u, above));
}""",
    "wn_saturate_i32": """fn wn_saturate_i32(x: f32) -> i32 {
  if (wn_is_nan(x)) { return 0; }
  if (x >= 2147483648.0) { return 2147483647; }
  return i32(max(x, -2147483648.0));
}""",
    "wn_saturate_u32": """fn wn_saturate_u32(x: f32) -> u32 {
  if (wn_is_nan(x)) { return 0u; }
  if (x >= 4294967296.0) { return 4294967295u; }
  return u32(max(x, 0.0));
}""",
    "wn_saturate_i64": """fn wn_saturate_i64(x: f32) -> i64 {
  if (wn_is_nan(x)) { return 0li; }
  if (x >= 9223372036854775808.0) { return 9223372036854775807li; }
  if (x <= -9223372036854775808.0) { return -9223372036854775807li - 1li; }
  return i64(x);
}""",
    "wn_saturate_u64": """fn wn_saturate_u64(x: f32) -> u64 {
  if (wn_is_nan(x) || x <= 0.0) { return 0lu; }
  if (x >= 18446744073709551616.0) { return 18446744073709551615lu; }
  return u64(x);
}""",
    "wn_widened": """fn wn_widened(x: i32) -> i64 {
  // By words: Mesa 22 takes comparisons of i64(x) with numbers for those of x, and mistakes them.
  return bitcast<i64>((u64(bitcast<u32>(x >> 31u)) << 32u) | u64(bitcast<u32>(x)));
}""",
    "wn_index_i32": """fn wn_index_i32(index: i32, size: u32) -> u32 {
  let n = i32(size);
  return u32(clamp(select(index, index + n, index < 0), 0, n - 1));
}""",
    "wn_index_u32": """fn wn_index_u32(index: u32, size: u32) -> u32 {
  return min(index, size - 1u);
}""",
    "wn_index_i64": """fn wn_index_i64(index: i64, size: u32) -> u32 {
  let n = i64(size);
  return u32(clamp(select(index, index + n, index < 0li), 0li, n - 1li));
}""",
    "wn_index_pair": """fn wn_index_pair(index: vec2<u32>, size: u32) -> u32 {
  if (index.y == 0u) { return min(index.x, size - 1u); }
  if (index.y == 0xffffffffu && index.x >= 0u - size) { return index.x + size; }
  return select(size - 1u, 0u, (index.y >> 31u) != 0u);
}""",
    "wn_difference_i32": """fn wn_difference_i32(a: i32, b: i32) -> f32 {
  let d = a - b;
  return select(f32(d), f32(a) - f32(b), ((a ^ b) & (a ^ d)) < 0);
}""",
    "wn_difference_u32": """fn wn_difference_u32(a: u32, b: u32) -> f32 {
  return select(f32(a - b), -f32(b - a), a < b);
}""",
    "wn_quotient": """fn wn_quotient(a: f32, b: f32) -> f32 {
  // Correctly rounded: a driver's division may be 2.5 units in the last place off.
  let bits_a = bitcast<u32>(a);
  let bits_b = bitcast<u32>(b);
  let power_a = (bits_a >> 23u) & 0xffu;
  let power_b = (bits_b >> 23u) & 0xffu;
  let digits_a = (bits_a & 0x7fffffu) | 0x800000u;
  let digits_b = (bits_b & 0x7fffffu) | 0x800000u;
  let shift = select(23u, 24u, digits_a < digits_b);
  let power = i32(power_a) - i32(power_b) + 150 - i32(shift);
  let normal = power_a - 1u < 254u && power_b - 1u < 254u && power > 0 && power < 255;
  if (!normal) { return wn_div(a, b); }
  // Of digits_a * 2^shift / digits_b an approximation, and what it leaves, modulo 2^32.
  let near = u32(f32(digits_a) / f32(digits_b) * f32(1u << shift));
  let rest = bitcast<i32>((digits_a << shift) - near * digits_b);
  let more = i32(round(f32(rest) / f32(digits_b)));
  let divisor = i32(digits_b);
  let left = 2 * (rest - more * divisor);
  // There are no halves: a quotient of 24 bits by 24 bits never ends after 25.
  let last = select(0, 1, left > divisor) - select(0, 1, left + divisor < 0);
  let digits = near + bitcast<u32>(more + last) - 0x800000u;
  return bitcast<f32>(((bits_a ^ bits_b) & 0x80000000u) | ((u32(power) << 23u) + digits));
}""",
    "wn_rounded_quotient": """fn wn_rounded_quotient(a: f32, b: f32, inverse: f32) -> f32 {
  // The product is off by 4 units in the last place at most: that matters near halves only.
  let near = a * inverse;
  let whole = round(near);
  let size = abs(b);
  let is_sure = size > 1e-30 && size < 1e30 && abs(near) < 1024.0 && abs(near - whole) < 0.499;
  if (is_sure) { return whole; }
  return round(wn_quotient(a, b));
}""",
    "wn_quantized_near": """fn wn_quantized_near(
  unsure: ptr<function, bool>, a: f32, b: f32, inverse: f32, zero: i32, low: i32, high: i32
) -> i32 {
  // Conversions and round() take as long as eight sums: the sum with 1.5 * 2^23 ends in the bits of
  // the nearest whole number. The product is off by 4 units in the last place at most, which
  // matters near halves only.
  let product = a * inverse;
  let near = clamp(product, f32(low - zero), f32(high - zero));
  let whole = bitcast<i32>(near + 12582912.0) - 0x4b400000;
  let size = abs(b);
  let is_usual = (size > 1e-30) & (size < 1e30) & (abs(product) < 1e38);
  *unsure |= !(is_usual & (abs(near - f32(whole)) < 0.4998));
  return whole + zero;
}""",
    "wn_quantized_byte": """fn wn_quantized_byte(
  a: f32, b: f32, inverse: f32, zero: i32, low: i32, high: i32
) -> i32 {
  var unsure = false;
  let code = wn_quantized_near(&unsure, a, b, inverse, zero, low, high);
  if (!unsure) { return code; }
  let rounded = round(wn_quotient(a, b));
  if (wn_is_nan(rounded)) { return 0; }
  return i32(clamp(rounded + f32(zero), f32(low), f32(high)));
}""",
    "wn_quantized_i32": """fn wn_quantized_i32(rounded: f32, zero: i32) -> i32 {
  if (wn_is_nan(rounded)) { return 0; }
  let whole = wn_pair_saturate_i(clamp(rounded, -1e18, 1e18));
  let sum = wn_pair_add(whole, wn_pair_extend(zero));
  let low = bitcast<i32>(sum.x);
  let outside = select(2147483647, -2147483647 - 1, (sum.y >> 31u) != 0u);
  return select(outside, low, all(sum == wn_pair_extend(low)));
}""",
    "wn_quantized_u32": """fn wn_quantized_u32(rounded: f32, zero: u32) -> u32 {
  if (wn_is_nan(rounded)) { return 0u; }
  let whole = wn_pair_saturate_i(clamp(rounded, -1e18, 1e18));
  let sum = wn_pair_add(whole, vec2<u32>(zero, 0u));
  let outside = select(0xffffffffu, 0u, (sum.y >> 31u) != 0u);
  return select(outside, sum.x, sum.y == 0u);
}""",
    "wn_place": """fn wn_place(i: u32, old: u32, new_size: u32, minus: u32) -> vec2<u32> {
  let centre = (2u * i + 1u) * old;
  let place = min(centre - min(centre, minus), (old - 1u) * (2u * new_size));
  return vec2<u32>(place / (2u * new_size), place % (2u * new_size));
}""",
    "wn_place_wide": """fn wn_place_wide(i: u32, old: u32, new_size: u32, minus: u32) -> vec2<u32> {
  let unit = 2u * new_size;
  let centre = wn_pair_wide(2u * i + 1u, old);
  let least = wn_pair_min_u(centre, vec2<u32>(minus, 0u));
  let place = wn_pair_min_u(wn_pair_sub(centre, least), wn_pair_wide(old - 1u, unit));
  let quotient = wn_pair_div_u(place, vec2<u32>(unit, 0u)).x;
  return vec2<u32>(quotient, place.x - quotient * unit);
}""",
}


def _declared(name: str, text: str) -> Function:
    head, _, body = text.removesuffix("}").partition(" {")
    parameters, _, result = head.removeprefix(f"fn {name}(").partition(") -> ")
    return Function.of(name, parameters, result, body)


FUNCTIONS: Mapping[str, Function] = {
    name: _declared(name, text)
    for texts in (
        _OWN,
        floats.FUNCTIONS,
        elementary.FUNCTIONS,
        int64.FUNCTIONS,
        integers.FUNCTIONS,
    )
    for name, text in texts.items()
}


def called(code: str) -> list[str]:
    """Return the names of the functions that `code` calls, directly or not, callees first."""
    wanted: list[str] = []

    def visit(text: str) -> None:
        for name in names_with_prefix(text, PRELUDE):
            if name in FUNCTIONS and name not in wanted:
                visit(FUNCTIONS[name].code.wgsl)
                if name not in wanted:
                    wanted.append(name)

    visit(code)
    return wanted


def used(code: str) -> str:
    """Return the declarations of the functions that `code` calls, callees first."""
    return "".join(FUNCTIONS[name].wgsl + "\n" for name in called(code))


@functools.cache
def signature(name: str) -> tuple[list[str], str] | None:
    """The types that a function takes, and the one it returns; None if there is none."""
    function = FUNCTIONS.get(name)
    if function is None:
        return None
    types = [parameter.partition(": ")[2] for parameter in function.parameters.split(", ")]
    return types, function.result


@functools.cache
def rounds(expression: str) -> int:
    """The most rounds of loops that the functions in an expression make."""
    functions = {name: FUNCTIONS[name].code for name in called(expression)}
    return iterations_of(Code.of(expression), functions)


@functools.cache
def cast(source: Storage, target: Storage) -> str:
    """WGSL expression template that converts `{input}` between data types."""
    if source.data_type == target.data_type:
        return "{input}"
    if target.compute == "f32":
        wide = _as_f32(source, target)
        if target.data_type == "float32":
            return wide
        if target.element == "f16":
            return f"f32(f16({wide}))"
        return f"unpack2x16float(wn_half_bits({wide})).x"
    if PAIR in (source.compute, target.compute):
        return int64.cast(source, target)
    if source.compute == "f32":
        match target.data_type:
            case "int8":
                return "clamp(wn_saturate_i32({input}), -128, 127)"
            case "uint8":
                return "min(wn_saturate_u32({input}), 255u)"
        return f"wn_saturate_{target.compute}({{input}})"
    if target.compute in ("i64", "u64"):
        if source.compute == "i32":
            return f"bitcast<{target.compute}>(wn_widened({{input}}))"
        # Extended by the source's own sign first; some compilers look at the target's.
        own = "u64" if source.compute.startswith("u") else "i64"
        return f"bitcast<{target.compute}>({own}({{input}}))"
    return target.wrap(f"{target.compute}({{input}})")


def _as_f32(source: Storage, target: Storage) -> str:
    match source.compute:
        case "f32":
            return "{input}"
        case "vec2<u32>":
            return int64.cast(source, target)
    return "f32({input})"
