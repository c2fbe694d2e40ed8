// add, workgroups (1, 1, 1)
@group(0) @binding(0) var<storage, read> fours0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out0: array<vec4<f32>>;
fn write(i: u32) {
  let q1 = fours0[i / 16u * 2u + i / 2u % 8u * 6u + i % 2u];
  let v2 = q1.x;
  let q3 = fours0[i % 2u];
  let v4 = q3.x;
  let v5 = v2 + v4;
  let v6 = q1.y;
  let v7 = q3.y;
  let v8 = v6 + v7;
  let v9 = q1.z;
  let v10 = q3.z;
  let v11 = v9 + v10;
  let v12 = q1.w;
  let v13 = q3.w;
  let v14 = v12 + v13;
  out0[i] = vec4<f32>(v5, v8, v11, v14);
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let i = g.x;
  if (i < 48u) { write(i); }
}

// cast, workgroups (1, 1, 1)
enable f16;
@group(0) @binding(0) var<storage, read> fours0: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out0: array<vec4<f16>>;
fn write(i: u32) {
  let q1 = fours0[i];
  let v2 = q1.x;
  let q3 = fours0[i % 6u + 42u - i / 6u * 6u];
  let v4 = q3.x;
  let v5 = v2 + v4;
  let v6 = f32(f16(v5));
  let v7 = q1.y;
  let v8 = q3.y;
  let v9 = v7 + v8;
  let v10 = f32(f16(v9));
  let v11 = q1.z;
  let v12 = q3.z;
  let v13 = v11 + v12;
  let v14 = f32(f16(v13));
  let v15 = q1.w;
  let v16 = q3.w;
  let v17 = v15 + v16;
  let v18 = f32(f16(v17));
  out0[i] = vec4<f16>(f16(v6), f16(v10), f16(v14), f16(v18));
}
@compute @workgroup_size(128)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
  let i = g.x;
  if (i < 48u) { write(i); }
}

// reduce_sum, workgroups (256, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<f32>;
fn partial(i: u32, t: u32) -> f32 {
  var acc1: f32 = 0.0f;
  for (var r = t; r < 300u; r += 32u) {
    let i2 = i + r * 2048u;
    let v3 = in0[i2];
    acc1 = acc1 + v3;
  }
  return acc1;
}
fn put(i: u32, total: f32) {
  out0[i] = total;
}
var<workgroup> shared_part: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = g.x * 8u + t % 8u;
  shared_part[t] = partial(min(i, 2047u), t / 8u);
  workgroupBarrier();
  if (t < 32u) {
    let shared_part_0 = shared_part[t + 0u] + shared_part[t + 32u];
    let shared_part_1 = shared_part[t + 64u] + shared_part[t + 96u];
    let shared_part_2 = shared_part[t + 128u] + shared_part[t + 160u];
    let shared_part_3 = shared_part[t + 192u] + shared_part[t + 224u];
    let shared_part_4 = shared_part_0 + shared_part_1;
    let shared_part_5 = shared_part_2 + shared_part_3;
    let shared_part_6 = shared_part_4 + shared_part_5;
    shared_part[t] = shared_part_6;
  }
  workgroupBarrier();
    let shared_part_0 = shared_part[t % 8u] + shared_part[t % 8u + 8u];
    let shared_part_1 = shared_part[t % 8u + 16u] + shared_part[t % 8u + 24u];
    let shared_part_2 = shared_part_0 + shared_part_1;
  let all_shared_part = shared_part_2;
  if (t < 8u && i < 2048u) { put(i, all_shared_part); }
}

// arg_min, workgroups (256, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<i32>;
fn wn_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn wn_below(a: f32, b: f32) -> bool {
  return (a < b) | (wn_is_nan(a) & !wn_is_nan(b));
}
fn candidate(i: u32, t: u32) -> Best {
  let i1 = i + t * 2048u;
  let v2 = in0[i1];
  var best = Best(v2, t);
  for (var r = t + 32u; r < 300u; r += 32u) {
    let i3 = i + r * 2048u;
    let v4 = in0[i3];
    if (wn_below(v4, best.value)) {
      best = Best(v4, r);
    }
  }
  return best;
}
fn better(a: Best, b: Best) -> Best {
  if (wn_below(a.value, b.value)) { return a; }
  if (wn_below(b.value, a.value)) { return b; }
  if (a.place < b.place) { return a; }
  return b;
}
fn put(i: u32, place: u32) {
  let whole1 = i32(place);
  out0[i] = whole1;
}
struct Best { value: f32, place: u32 }
var<workgroup> shared_best: array<Best, 256>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = g.x * 8u + t % 8u;
  shared_best[t] = candidate(min(i, 2047u), t / 8u);
  workgroupBarrier();
  for (var s = 128u; s > 4u; s = s >> 1u) {
    if (t < s) { shared_best[t] = better(shared_best[t], shared_best[t + s]); }
    workgroupBarrier();
  }
  if (t < 8u && i < 2048u) { put(i, shared_best[t].place); }
}
