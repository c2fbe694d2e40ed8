// reduce_sum, workgroups (1, 1, 1)
enable f16;
@group(0) @binding(0) var<storage, read> in0: array<f16>;
@group(0) @binding(1) var<storage, read_write> out0: array<f16>;
fn value(i: u32) -> f32 {
  let base1 = i * 8u;
  var acc2: f32 = 0.0f;
  for (var r3 = 0u; r3 < 8u; r3++) {
    let i4 = base1 + r3;
    let v5 = f32(in0[i4]);
    let v6 = abs(v5);
    acc2 = acc2 + v6;
  }
  return acc2;
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 7u) { return; }
  out0[w] = f16(value(w));
}
