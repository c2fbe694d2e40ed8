"""Elementary functions in WGSL, for the prelude.

WGSL's own functions may be inaccurate, differ between drivers, or be undefined for arguments that
WebNN allows. No function here needs a fused `fma`: products that must be exact fit float32.
"""

from __future__ import annotations

from webnn_py.engines.webgpu.program.pieces import END_LOOP, loop

FUNCTIONS = {
    "wn_settled": """fn wn_settled(x: f32) -> f32 {
  // The same number, but no driver can add to a sum's first term what is to be added to the last.
  return select(x, x + 1.0, bitcast<u32>(x) == 0x7fffffffu);
}""",
    "wn_exp": """fn wn_exp(x: f32) -> f32 {
  let y = clamp(x, -150.0, 150.0);
  let n = round(y * 1.4426950408889634);
  // ln 2 in two parts, of which the first times n is exact.
  let r = (y - n * 0.693359375) + n * 2.12194440e-4;
  var p = 1.0 / 5040.0;
  p = fma(p, r, 1.0 / 720.0);
  p = fma(p, r, 1.0 / 120.0);
  p = fma(p, r, 1.0 / 24.0);
  p = fma(p, r, 1.0 / 6.0);
  p = fma(p, r, 0.5);
  return select(wn_scale(fma(p * r, r, r) + 1.0, i32(n)), x, wn_is_nan(x));
}""",
    "wn_scale": """fn wn_scale(x: f32, n: i32) -> f32 {
  // x * 2^n in two steps, so that neither factor overflows.
  let half_n = n / 2;
  let low = bitcast<f32>((half_n + 127) << 23u);
  return x * low * bitcast<f32>((n - half_n + 127) << 23u);
}""",
    "wn_expm1": """fn wn_expm1(x: f32) -> f32 {
  let r = x * x;
  let odd = fma(r, 1.0 / 5040.0, 1.0 / 120.0);
  let even = fma(r, 1.0 / 720.0, 1.0 / 24.0);
  let small = x + r * (0.5 + fma(r, even, x * fma(r, odd, 1.0 / 6.0)));
  return select(wn_exp(x) - 1.0, small, abs(x) < 0.35);
}""",
    "wn_log": """fn wn_log(x: f32) -> f32 {
  if (x < 0.0 || wn_is_nan(x)) { return wn_bits(0x7fc00000u); }
  if (x == 0.0) { return wn_bits(0xff800000u); }
  if (wn_is_inf(x)) { return x; }
  let split = wn_split(x);
  return wn_log_near(split.x - 1.0, split.y);
}""",
    "wn_log_near": """fn wn_log_near(f: f32, e: f32) -> f32 {
  // ln((1 + f) * 2^e) for a small f.
  let s = f / (2.0 + f);
  let z = s * s;
  let r = z * (0.66666666 + z * (0.40000972 + z * (0.28498787 + z * 0.24279079)));
  let h = 0.5 * f * f;
  return e * 0.693138123 - ((h - (s * (h + r) + e * 9.0580006e-6)) - f);
}""",
    "wn_split": """fn wn_split(x: f32) -> vec2<f32> {
  // x = m * 2^e for a positive x, m around 1: [m, e].
  let tiny = x < 1.1754944e-38;
  let bits = bitcast<u32>(select(x, x * 8388608.0, tiny));
  let e = i32(bits >> 23u) - 127 - select(0, 23, tiny);
  let m = bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u);
  return select(vec2<f32>(m, f32(e)), vec2<f32>(m * 0.5, f32(e + 1)), m > 1.4142135);
}""",
    "wn_log1p": """fn wn_log1p(x: f32) -> f32 {
  if (abs(x) < 0.29) { return wn_log_near(x, 0.0); }
  return wn_log(1.0 + x);
}""",
    "wn_tanh": """fn wn_tanh(x: f32) -> f32 {
  let t = wn_expm1(2.0 * min(abs(x), 20.0));
  let size = t / (t + 2.0);
  return select(select(size, -size, x < 0.0), x, wn_is_nan(x));
}""",
    "wn_erf": """fn wn_erf(x: f32) -> f32 {
  // Minimax polynomials, within 2 units in the last place.
  let t = abs(x);
  let s = x * x;
  if (t <= 0.927734375) {
    var r = fma(-5.96761703e-4, s, 4.99119423e-3);
    r = fma(r, s, -2.67681349e-2);
    r = fma(r, s, 1.12819925e-1);
    r = fma(r, s, -3.76125336e-1);
    return fma(fma(r, s, 1.28379166e-1), x, x);
  }
  let y = min(t, 4.0);
  var r = fma(fma(-1.72853470e-5, y, 3.83197126e-4), y * y, fma(-3.88396438e-3, y, 2.42546219e-2));
  r = fma(fma(fma(r, y, -1.06777877e-1), y, -6.34846687e-1), y, -1.28717512e-1);
  let large = 1.0 - wn_exp(fma(r, y, -y));
  return select(select(large, -large, x < 0.0), x, wn_is_nan(x));
}""",
    "wn_gelu": """fn wn_gelu(x: f32) -> f32 {
  if (!(x < -1.0)) { return 0.5 * x * (1.0 + wn_erf(x * 0.7071067811865476)); }
  // Left of -1 the sum would cancel; Chebyshev's fit to the complementary function does not.
  let y = min(-x, 20.0);
  let t = 1.0 / (1.0 + 0.35355339059327373 * y);
  let q = wn_erfc_fit(t);
  // The square in two parts, of which the first is exact.
  let high = wn_head(y);
  let low = (y - high) * (y + high);
  return 0.5 * x * t * wn_exp(-0.5 * high * high) * wn_exp(q - 0.5 * low);
}""",
    "wn_erfc_fit": """fn wn_erfc_fit(t: f32) -> f32 {
  // Chebyshev's fit: erfc(z) = t * exp(fit - z * z) at t = 1 / (1 + z / 2), for z from 0 on.
  var q = 0.17087277;
  q = fma(q, t, -0.82215223);
  q = fma(q, t, 1.48851587);
  q = fma(q, t, -1.13520398);
  q = fma(q, t, 0.27886807);
  q = fma(q, t, -0.18628806);
  q = fma(q, t, 0.09678418);
  q = fma(q, t, 0.37409196);
  q = fma(q, t, 1.00002368);
  q = fma(q, t, -1.26551223);
  return q;
}""",
    "wn_gelu_half": """fn wn_gelu_half(x: f32) -> f32 {
  // A fit to the logarithm of half the complementary function, good to 0.01 units in the last
  // place of float16.
  let y = abs(x);
  var q = fma(-1.5299254e-6, y, 5.6630928e-5);
  q = fma(q, y, -8.9944572e-4);
  q = fma(q, y, 8.4136184e-3);
  q = fma(q, y, -5.3815859e-2);
  q = fma(q, y, -0.45856897);
  q = fma(q, y, -1.1512216);
  let part = exp2(fma(q, y, -0.99999628));
  return x * select(part, 1.0 - part, x > 0.0);
}""",
    "wn_sigmoid_half": """fn wn_sigmoid_half(x: f32) -> f32 {
  // WGSL's own exp is precise enough for float16.
  let t = exp(-abs(x));
  let large = 1.0 / (1.0 + t);
  return select(select(t * large, large, x > 0.0), x, wn_is_nan(x));
}""",
    "wn_head": """fn wn_head(x: f32) -> f32 {
  // The upper half of the digits: products of two such are exact.
  return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}""",
    "wn_pow": """fn wn_pow(a: f32, b: f32) -> f32 {
  if (b == 0.0 || a == 1.0) { return 1.0; }
  if (wn_is_nan(a) || wn_is_nan(b)) { return wn_bits(0x7fc00000u); }
  if (b == 1.0) { return a; }
  if (b == 2.0) { return a * a; }
  if (b == 0.5 && a >= 0.0) { return sqrt(a); }
  if (b == -1.0) { return 1.0 / a; }
  let huge = wn_bits(0x7f800000u);
  if (wn_is_inf(b)) {
    return select(select(0.0, huge, (abs(a) > 1.0) == (b > 0.0)), 1.0, a == -1.0);
  }
  let whole = b == trunc(b);
  let odd = whole && abs(b) < 16777216.0 && (i32(b) & 1) != 0;
  if (a == 0.0 || wn_is_inf(a)) {
    let m = select(0.0, huge, (a == 0.0) == (b < 0.0));
    return select(m, -m, odd && (bitcast<u32>(a) >> 31u) != 0u);
  }
  if (whole && abs(b) <= 32.0) {
    // Few multiplications keep what a logarithm would round away.
    var n = u32(abs(b));
    var base = a;
    var r = 1.0;
    """
    + loop("while (n != 0u)", 6)
    + """
      if ((n & 1u) != 0u) { r = r * base; }
      base = base * base;
      n = n >> 1u;
    """
    + END_LOOP
    + """
    if (b > 0.0) { return r; }
    if (abs(r) > 1e-37) { return 1.0 / r; }
  }
  if (a < 0.0 && !whole) { return wn_bits(0x7fc00000u); }
  let m = wn_pow_positive(abs(a), b);
  return select(m, -m, a < 0.0 && odd);
}""",
    "wn_pow_positive": """fn wn_pow_positive(a: f32, b: f32) -> f32 {
  // 2^(b * log2 a), the logarithm and its product with b as sums of a head and a rest.
  let split = wn_split(a);
  let f = split.x - 1.0;
  let d_head = wn_head(split.x + 1.0);
  let d_rest = split.x - (d_head - 1.0);
  let d = d_head + d_rest;
  let s_head = wn_head(f / d);
  let s_rest = ((f - s_head * d_head) - s_head * d_rest) / d;
  let s = s_head + s_rest;
  let z = s * s;
  let series = fma(z, fma(z, fma(z, 2.0 / 9.0, 2.0 / 7.0), 0.4), 2.0 / 3.0);
  let l_head = 2.0 * s_head;
  let l_rest = fma(s * z, series, 2.0 * s_rest);
  // 1 / ln 2 = 1.4423828125 + 3.1222884e-4
  let p = l_head * 1.4423828125;
  let p_rest = fma(l_head, 3.1222884e-4, l_rest * 1.442695);
  let t = wn_head((p_rest + p) + split.y);
  let t_rest = p_rest - ((t - split.y) - p);
  let b_head = wn_head(b);
  let whole = b_head * t;
  let rest = fma(b - b_head, t, b * t_rest);
  let n = round(clamp(whole + rest, -300.0, 300.0));
  if (n > 200.0) { return wn_bits(0x7f800000u); }
  if (n < -200.0) { return 0.0; }
  return wn_scale(wn_exp(((whole - n) + rest) * 0.6931471805599453), i32(n));
}""",
    "wn_turns": """fn wn_turns(x: f32) -> vec2<f32> {
  // x less a multiple of pi / 2, and which multiple, by four: [-pi/4 to pi/4, 0 to 3].
  let size = abs(x);
  if (size < 8192.0) {
    // pi / 2 in three parts, of which the first two times n are exact.
    let n = round(x * 0.6366197723675814);
    let r = ((x - n * 1.5703125) - n * 4.837512969970703e-4) - n * 7.549789954891882e-8;
    return vec2<f32>(r, f32(i32(n) & 3));
  }
  // The digits of 2 / pi from where they matter, times the digits of x.
  var digits = array<u32, 8>(
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu
  );
  let bits = bitcast<u32>(size);
  let start = (bits >> 23u) - 120u;
  let shift = start & 31u;
  var word: array<u32, 3>;
  """
    + loop("for (var i = 0u; i < 3u; i++)", 3)
    + """
    let next = digits[start / 32u + i + 1u];
    word[i] = (digits[start / 32u + i] << shift) | select(0u, next >> (32u - shift), shift != 0u);
  """
    + END_LOOP
    + """
  let m = (bits & 0x7fffffu) | 0x800000u;
  let low = wn_pair_wide(m, word[2]);
  let middle = wn_pair_add(wn_pair_wide(m, word[1]), vec2<u32>(low.y, 0u));
  let high = m * word[0] + middle.y;
  let part = vec2<u32>((middle.x << 2u) | (low.x >> 30u), (high << 2u) | (middle.x >> 30u));
  let r = wn_pair_to_f32_i(part) * 5.421010862427522e-20 * 1.5707963267948966;
  let n = (high >> 30u) + (part.y >> 31u);
  return select(vec2<f32>(r, f32(n & 3u)), vec2<f32>(-r, f32((4u - n) & 3u)), x < 0.0);
}""",
    "wn_sin_cos": """fn wn_sin_cos(r: f32) -> vec2<f32> {
  // For |r| <= pi / 4.
  let z = r * r;
  let s = fma(fma(fma(z, -1.9515295891e-4, 8.3321608736e-3), z, -1.6666654611e-1) * z, r, r);
  let c = fma(fma(z, 2.443315711809948e-5, -1.388731625493765e-3), z, 4.166664568298827e-2);
  return vec2<f32>(s, fma(c * z, z, fma(z, -0.5, 1.0)));
}""",
    "wn_sine": """fn wn_sine(x: f32, quarters: u32) -> f32 {
  // sin(x + quarters * pi / 2)
  if (wn_is_nan(x) || wn_is_inf(x)) { return wn_bits(0x7fc00000u); }
  let turns = wn_turns(x);
  let values = wn_sin_cos(turns.x);
  let n = (u32(turns.y) + quarters) & 3u;
  let size = select(values.x, values.y, (n & 1u) != 0u);
  return select(size, -size, n >= 2u);
}""",
    "wn_sin": "fn wn_sin(x: f32) -> f32 { return wn_sine(x, 0u); }",
    "wn_cos": "fn wn_cos(x: f32) -> f32 { return wn_sine(x, 1u); }",
    "wn_tan": """fn wn_tan(x: f32) -> f32 {
  if (wn_is_nan(x) || wn_is_inf(x)) { return wn_bits(0x7fc00000u); }
  let turns = wn_turns(x);
  let values = wn_sin_cos(turns.x);
  return select(values.x / values.y, -values.y / values.x, (u32(turns.y) & 1u) != 0u);
}""",
}
