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
  for (var y6 = 0u; y6 < 2u; y6++) {
    for (var x7 = 0u; x7 < 2u; x7++) {
      let p8 = h2 * 2u + y6;
      let p9 = w3 * 2u + x7;
       {
        let i10 = c1 * 64u + p8 * 8u + p9;
        let v11 = in0[i10];
        acc4 = acc4 + v11;
        count5++;
      }
    }
  }
  let v12 = acc4 / f32(count5);
  let v13 = in1[c1];
  let v14 = v12 + v13;
  let v15 = wn_max(v14, 0.0f);
  return v15;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let w = g.x;
  if (w >= 48u) { return; }
  out0[w] = value(w);
}
