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
  let c9 = i8 / 8u % 8u - 1u;
  let c10 = i8 % 8u - 1u;
  var v11: f32 = 0.0f;
  if (c9 < 6u && c10 < 6u) {
    let i12 = i8 / 64u * 36u + c9 * 6u + c10;
    let v13 = in0[i12];
    v11 = v13;
  }
  acc4 = acc4 + v11;
  count5 = count5 + 1u;
  let p14 = w3 * 2u + 1u;
  let i15 = c1 * 64u + p6 * 8u + p14;
  let c16 = i15 / 8u % 8u - 1u;
  let c17 = i15 % 8u - 1u;
  var v18: f32 = 0.0f;
  if (c16 < 6u && c17 < 6u) {
    let i19 = i15 / 64u * 36u + c16 * 6u + c17;
    let v20 = in0[i19];
    v18 = v20;
  }
  acc4 = acc4 + v18;
  count5 = count5 + 1u;
  let p21 = h2 * 2u + 1u;
  let i22 = c1 * 64u + p21 * 8u + p7;
  let c23 = i22 / 8u % 8u - 1u;
  let c24 = i22 % 8u - 1u;
  var v25: f32 = 0.0f;
  if (c23 < 6u && c24 < 6u) {
    let i26 = i22 / 64u * 36u + c23 * 6u + c24;
    let v27 = in0[i26];
    v25 = v27;
  }
  acc4 = acc4 + v25;
  count5 = count5 + 1u;
  let i28 = c1 * 64u + p21 * 8u + p14;
  let c29 = i28 / 8u % 8u - 1u;
  let c30 = i28 % 8u - 1u;
  var v31: f32 = 0.0f;
  if (c29 < 6u && c30 < 6u) {
    let i32 = i28 / 64u * 36u + c29 * 6u + c30;
    let v33 = in0[i32];
    v31 = v33;
  }
  acc4 = acc4 + v31;
  count5 = count5 + 1u;
  let v34 = acc4 / f32(count5);
  let v35 = in1[c1];
  let v36 = v34 + v35;
  let v37 = wn_max(v36, 0.0f);
  return v37;
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 48u) { return; }
  out0[w] = value(w);
}
