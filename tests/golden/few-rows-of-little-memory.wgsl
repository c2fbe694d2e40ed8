// matmul, workgroups (1, 1, 1)
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read> in1: array<f32>;
@group(0) @binding(2) var<storage, read_write> out0: array<f32>;
fn tail(i: u32, total: f32) -> f32 {
  return total;
}
fn put(i: u32, t: f32) { out0[i] = f32(tail(i, t)); }
var<workgroup> gemm_partial: array<array<f32, 256>, 2>;
fn gemm_a(batch: u32, row: u32, k_in: u32) -> f32 {
  let k = min(k_in, 64u);
  return select(f32(), in0[row * 65u + k], k_in < 65u);
}
fn gemm_b(batch: u32, k_in: u32, col_in: u32) -> f32 {
  let col = min(col_in, 2u);
  let k = min(k_in, 64u);
  return select(f32(), in1[k * 3u + col], k_in < 65u);
}
fn gemm_store(batch: u32, row: u32, col: u32, value: f32) {
  { put(row * 3u + col, value); }
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let gemm_col = wid.x;
  let gemm_row = wid.y;
  let gemm_batch = wid.z;
  const batch = 0u;
  let slice = lid / 8u;
  let column = lid % 8u;
  let col = gemm_col * 8u + column;
  var acc0 = f32();
  var acc1 = f32();
  var acc2 = f32();
  for (var first = 0u; first < 65u; first += 128u) {
    let k0 = first + slice;
    let b0 = gemm_b(batch, k0, col);
    let k1 = first + slice + 32u;
    let b1 = gemm_b(batch, k1, col);
    let k2 = first + slice + 64u;
    let b2 = gemm_b(batch, k2, col);
    let k3 = first + slice + 96u;
    let b3 = gemm_b(batch, k3, col);
    acc0 = fma(gemm_a(batch, 0u, k0), b0, acc0);
    acc1 = fma(gemm_a(batch, 1u, k0), b0, acc1);
    acc2 = fma(gemm_a(batch, 2u, k0), b0, acc2);
    acc0 = fma(gemm_a(batch, 0u, k1), b1, acc0);
    acc1 = fma(gemm_a(batch, 1u, k1), b1, acc1);
    acc2 = fma(gemm_a(batch, 2u, k1), b1, acc2);
    acc0 = fma(gemm_a(batch, 0u, k2), b2, acc0);
    acc1 = fma(gemm_a(batch, 1u, k2), b2, acc1);
    acc2 = fma(gemm_a(batch, 2u, k2), b2, acc2);
    acc0 = fma(gemm_a(batch, 0u, k3), b3, acc0);
    acc1 = fma(gemm_a(batch, 1u, k3), b3, acc1);
    acc2 = fma(gemm_a(batch, 2u, k3), b3, acc2);
  }
  let sum0 = acc0;
  let sum1 = acc1;
  let sum2 = acc2;
  gemm_partial[0][lid] = sum0;
  gemm_partial[1][lid] = sum1;
  workgroupBarrier();
  if (slice < 16u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 128u];
    gemm_partial[1][lid] += gemm_partial[1][lid + 128u];
  }
  workgroupBarrier();
  if (slice < 8u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 64u];
    gemm_partial[1][lid] += gemm_partial[1][lid + 64u];
  }
  workgroupBarrier();
  if (slice < 4u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 32u];
    gemm_partial[1][lid] += gemm_partial[1][lid + 32u];
  }
  workgroupBarrier();
  if (slice < 2u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 16u];
    gemm_partial[1][lid] += gemm_partial[1][lid + 16u];
  }
  workgroupBarrier();
  if (slice < 1u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 8u];
    gemm_partial[1][lid] += gemm_partial[1][lid + 8u];
  }
  workgroupBarrier();
  if (slice == 0u) {
  if (col < 3u) { gemm_store(batch, 0u, col, gemm_partial[0][lid]); }
  if (col < 3u) { gemm_store(batch, 1u, col, gemm_partial[1][lid]); }
  }
  workgroupBarrier();
  gemm_partial[0][lid] = sum2;
  workgroupBarrier();
  if (slice < 16u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 128u];
  }
  workgroupBarrier();
  if (slice < 8u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 64u];
  }
  workgroupBarrier();
  if (slice < 4u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 32u];
  }
  workgroupBarrier();
  if (slice < 2u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 16u];
  }
  workgroupBarrier();
  if (slice < 1u) {
    gemm_partial[0][lid] += gemm_partial[0][lid + 8u];
  }
  workgroupBarrier();
  if (slice == 0u) {
  if (col < 3u) { gemm_store(batch, 2u, col, gemm_partial[0][lid]); }
  }
}
