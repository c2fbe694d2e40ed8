// slice, workgroups (2, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read> in1: array<f32>;
@group(0) @binding(2) var<storage, read_write> out0: array<f32>;
fn value(i: u32) -> f32 {
  let i1 = i / 24u * 48u + i % 24u + 12u;
  let i2 = clamp(i1 / 48u, 1u, 8u) + i1 / 12u % 4u * 64u + clamp(i1 % 12u, 2u, 9u) * 8u - 17u;
  let t3 = i2 / 64u;
  let c4 = i2 % 64u;
  var v5: f32 = 0.0f;
  if (c4 < 48u) {
    let i6 = t3 * 48u + c4;
    let v7 = in0[i6];
    v5 = v7;
  }
  else {
    let i8 = t3 * 16u + c4 - 48u;
    let v9 = in1[i8];
    v5 = v9;
  }
  return v5;
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 240u) { return; }
  out0[w] = value(w);
}

// reverse, workgroups (2, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<f32>;
fn value(i: u32) -> f32 {
  let i1 = i / 48u * 48u + i % 8u + 40u - i / 8u % 6u * 8u;
  let v2 = in0[i1];
  return v2;
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 192u) { return; }
  out0[w] = value(w);
}
