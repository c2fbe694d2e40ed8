// pad, workgroups (3, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<f32>;
fn value(i: u32) -> f32 {
  let c1 = i / 8u % 8u - 1u;
  let c2 = i % 8u - 1u;
  var v3: f32 = 0.0f;
  if (c1 < 6u && c2 < 6u) {
    let i4 = i / 64u * 36u + c1 * 6u + c2;
    let v5 = in0[i4];
    v3 = v5;
  }
  return v3;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 192u) { return; }
  out0[w] = value(w);
}

// average_pool2d, workgroups (1, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read> in1: array<f32>;
@group(0) @binding(2) var<storage, read_write> out0: array<f32>;
fn wn_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn wn_max(a: f32, b: f32) -> f32 {
  return select(select(max(a, b), b, wn_is_nan(b)), a, wn_is_nan(a));
}
fn value(i: u32) -> f32 {
  let c1 = i / 16u;
  let h2 = i / 4u % 4u;
  let w3 = i % 4u;
  var acc4: f32 = 0.0;
  var count5: u32 = 0u;
  let p6 = h2 * 2u;
  let p7 = w3 * 2u;
  let i8 = c1 * 64u + p6 * 8u + p7;
  let v9 = in0[i8];
  acc4 = acc4 + v9;
  count5 = count5 + 1u;
  let p10 = w3 * 2u + 1u;
  let i11 = c1 * 64u + p6 * 8u + p10;
  let v12 = in0[i11];
  acc4 = acc4 + v12;
  count5 = count5 + 1u;
  let p13 = h2 * 2u + 1u;
  let i14 = c1 * 64u + p13 * 8u + p7;
  let v15 = in0[i14];
  acc4 = acc4 + v15;
  count5 = count5 + 1u;
  let i16 = c1 * 64u + p13 * 8u + p10;
  let v17 = in0[i16];
  acc4 = acc4 + v17;
  count5 = count5 + 1u;
  let v18 = acc4 / f32(count5);
  let v19 = in1[c1];
  let v20 = v18 + v19;
  let v21 = wn_max(v20, 0.0f);
  return v21;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 48u) { return; }
  out0[w] = value(w);
}
