// reduce_l2, workgroups (35000, 2, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<f32>;
fn partial(i: u32, t: u32) -> f32 {
  let base1 = i * 300u;
  var acc2: f32 = 0.0f;
  for (var r = t; r < 300u; r += 256u) {
    let i3 = base1 + r;
    let v4 = in0[i3];
    acc2 = acc2 + v4 * v4;
  }
  return acc2;
}
fn put(i: u32, total: f32) {
  let whole1 = sqrt(total);
  out0[i] = whole1;
}
var<workgroup> shared_part: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = g.x + g.y * 35000u;
  shared_part[t] = partial(min(i, 69999u), t);
  workgroupBarrier();
  if (t < 16u) {
    let shared_part_0 = shared_part[t + 0u] + shared_part[t + 16u];
    let shared_part_1 = shared_part[t + 32u] + shared_part[t + 48u];
    let shared_part_2 = shared_part[t + 64u] + shared_part[t + 80u];
    let shared_part_3 = shared_part[t + 96u] + shared_part[t + 112u];
    let shared_part_4 = shared_part[t + 128u] + shared_part[t + 144u];
    let shared_part_5 = shared_part[t + 160u] + shared_part[t + 176u];
    let shared_part_6 = shared_part[t + 192u] + shared_part[t + 208u];
    let shared_part_7 = shared_part[t + 224u] + shared_part[t + 240u];
    let shared_part_8 = shared_part_0 + shared_part_1;
    let shared_part_9 = shared_part_2 + shared_part_3;
    let shared_part_10 = shared_part_4 + shared_part_5;
    let shared_part_11 = shared_part_6 + shared_part_7;
    let shared_part_12 = shared_part_8 + shared_part_9;
    let shared_part_13 = shared_part_10 + shared_part_11;
    let shared_part_14 = shared_part_12 + shared_part_13;
    shared_part[t] = shared_part_14;
  }
  workgroupBarrier();
    let shared_part_0 = shared_part[0] + shared_part[1];
    let shared_part_1 = shared_part[2] + shared_part[3];
    let shared_part_2 = shared_part[4] + shared_part[5];
    let shared_part_3 = shared_part[6] + shared_part[7];
    let shared_part_4 = shared_part[8] + shared_part[9];
    let shared_part_5 = shared_part[10] + shared_part[11];
    let shared_part_6 = shared_part[12] + shared_part[13];
    let shared_part_7 = shared_part[14] + shared_part[15];
    let shared_part_8 = shared_part_0 + shared_part_1;
    let shared_part_9 = shared_part_2 + shared_part_3;
    let shared_part_10 = shared_part_4 + shared_part_5;
    let shared_part_11 = shared_part_6 + shared_part_7;
    let shared_part_12 = shared_part_8 + shared_part_9;
    let shared_part_13 = shared_part_10 + shared_part_11;
    let shared_part_14 = shared_part_12 + shared_part_13;
  let all_shared_part = shared_part_14;
  if (t == 0u && i < 70000u) { put(i, all_shared_part); }
}

// arg_max, workgroups (35000, 2, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<i32>;
fn wn_is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn wn_above(a: f32, b: f32) -> bool {
  // Whether a takes the place of b as the greatest; NaN is above all numbers.
  return (a > b) | (wn_is_nan(a) & !wn_is_nan(b));
}
fn candidate(i: u32, t: u32) -> Best {
  let base1 = i * 300u;
  let i2 = base1 + t;
  let v3 = in0[i2];
  var best = Best(v3, t);
  for (var r = t + 256u; r < 300u; r += 256u) {
    let i4 = base1 + r;
    let v5 = in0[i4];
    if (wn_above(v5, best.value)) {
      best = Best(v5, r);
    }
  }
  return best;
}
fn better(a: Best, b: Best) -> Best {
  if (wn_above(a.value, b.value)) { return a; }
  if (wn_above(b.value, a.value)) { return b; }
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
  let i = g.x + g.y * 35000u;
  shared_best[t] = candidate(min(i, 69999u), t);
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (t < s) { shared_best[t] = better(shared_best[t], shared_best[t + s]); }
    workgroupBarrier();
  }
  if (t < 1u && i < 70000u) { put(i, shared_best[t].place); }
}

// cumulative_sum, workgroups (35000, 2, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out0: array<f32>;
fn place(i: u32, r: u32) -> u32 {
  let base1 = i * 300u;
  return base1 + 299u - r;
}
fn element(at: u32) -> f32 {
  let v1 = in0[at];
  return v1;
}
fn put(at: u32, total: f32) {
  out0[at] = total;
}
var<workgroup> sums: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let i = min(g.x + g.y * 35000u, 69999u);
  let first = min(t * 5u, 300u);
  let last = min(first + 5u, 300u);
  var total = 0.0f;
  for (var r = first; r < last; r++) {
    let at = place(i, r);
    total = total + element(at);
  }
  sums[t] = total;
  workgroupBarrier();
  for (var s = 1u; s < 64u; s = s << 1u) {
    var before = 0.0f;
    if (t >= s) { before = sums[t - s]; }
    workgroupBarrier();
    sums[t] = sums[t] + before;
    workgroupBarrier();
  }
  total = 0.0f;
  if (t > 0u) { total = sums[t - 1u]; }
  for (var r = first; r < last; r++) {
    let at = place(i, r);
    total = total + element(at); put(at, total);
  }
}
