// max, workgroups (1, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read> in1: array<f32>;
@group(0) @binding(2) var<storage, read_write> out0: array<f32>;
fn wn_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn wn_max(a: f32, b: f32) -> f32 {
  return select(select(max(a, b), b, wn_is_nan(b)), a, wn_is_nan(a));
}
fn value(i: u32) -> f32 {
  let i1 = i % 6u;
  let v2 = in0[i1];
  let i3 = i / 6u;
  let v4 = in1[i3];
  let v5 = v2 + v4;
  let c6 = 0.5f;
  let v7 = v5 * c6;
  let v8 = v7 - v2;
  let v9 = sqrt(v7);
  let v10 = wn_max(v8, v9);
  return v10;
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 24u) { return; }
  out0[w] = value(w);
}
