// lesser_or_equal, workgroups (1, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<u32>;
@group(0) @binding(1) var<storage, read> in1: array<u32>;
@group(0) @binding(2) var<storage, read_write> out0: array<u32>;
fn wn_flag(x: bool) -> u32 { return select(0u, 1u, x); }
fn value(i: u32) -> u32 {
  let v1 = ((in0[i >> 2u] >> ((i & 3u) * 8u)) & 0xffu);
  let i2 = i % 3u;
  let v3 = ((in1[i2 >> 2u] >> ((i2 & 3u) * 8u)) & 0xffu);
  let v4 = wn_flag(v1 <= v3);
  return v4;
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 4u) { return; }
  let e0 = value(w * 4u);
  let e1 = value(w * 4u + 1u);
  let e2 = value(w * 4u + 2u);
  let e3 = value(min(w * 4u + 3u, 14u));
  let word = ((u32(e0) & 0xffu) << 0u) | ((u32(e1) & 0xffu) << 8u) | ((u32(e2) & 0xffu) << 16u) | ((u32(e3) & 0xffu) << 24u);
  if (w == 3u) {
    out0[w] = (word & 16777215u) | (out0[w] & 4278190080u);
    return;
  }
  out0[w] = word;
}
