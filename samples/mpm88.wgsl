// A liquid of particles on a grid: the moving least squares material point method, as in Taichi's
// mpm88 (Hu et al., "A Moving Least Squares Material Point Method", 2018).
//
// The grid is summed up by atomics in fixed point: floats have none, and sums of integers are the
// same in whatever order they come. A particle's mass is 1; the domain is 0 to 1 along both axes.

const GRID = 128;
const DX = 1.0 / f32(GRID);
const STIFFNESS = 400.0;
const GRAVITY = 9.8;
const WALL = 3;            // cells
const UNIT = 1048576.0;    // of fixed point: sums of up to 2047
override dt: f32 = 2e-4;   // seconds

@group(0) @binding(0) var<storage, read_write> position: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read_write> velocity: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> affine: array<mat2x2<f32>>;  // of the velocity
@group(0) @binding(3) var<storage, read_write> volume: array<f32>;          // relative to the first
@group(0) @binding(4) var<storage, read_write> sums: array<atomic<i32>>;    // momentum x, y; mass
@group(0) @binding(5) var<storage, read_write> flow: array<vec2<f32>>;      // of the grid

struct Cells { first: vec2<i32>, weights: array<vec2<f32>, 3>, offset: vec2<f32> }

// The 3x3 cells around a place, their weights along each axis, and where they begin from there.
fn cells(place: vec2<f32>) -> Cells {
  let first = vec2<i32>(place / DX - 0.5);
  let f = place / DX - vec2<f32>(first);
  let weights = array(0.5 * (1.5 - f) * (1.5 - f), 0.75 - (f - 1) * (f - 1), 0.5 * (f - 0.5) * (f - 0.5));
  return Cells(first, weights, -f);
}

fn number(cell: vec2<i32>) -> u32 {
  let inside = clamp(cell, vec2<i32>(0), vec2<i32>(GRID - 1));
  return u32(inside.y * GRID + inside.x);
}

@compute @workgroup_size(64)
fn particles_to_grid(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= arrayLength(&position)) { return; }
  let around = cells(position[id.x]);
  let pressure = -4.0 * dt * STIFFNESS * (volume[id.x] - 1.0) / (DX * DX);
  let moved = affine[id.x] + mat2x2<f32>(pressure, 0.0, 0.0, pressure);
  for (var y = 0; y < 3; y++) {
    for (var x = 0; x < 3; x++) {
      let weight = around.weights[x].x * around.weights[y].y;
      let distance = (around.offset + vec2<f32>(f32(x), f32(y))) * DX;
      let momentum = weight * (velocity[id.x] + moved * distance);
      let at = 3u * number(around.first + vec2<i32>(x, y));
      atomicAdd(&sums[at], i32(momentum.x * UNIT));
      atomicAdd(&sums[at + 1u], i32(momentum.y * UNIT));
      atomicAdd(&sums[at + 2u], i32(weight * UNIT));
    }
  }
}

@compute @workgroup_size(64)
fn move_grid(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= arrayLength(&flow)) { return; }
  let x = f32(atomicExchange(&sums[3u * id.x], 0));
  let y = f32(atomicExchange(&sums[3u * id.x + 1u], 0));
  let mass = f32(atomicExchange(&sums[3u * id.x + 2u], 0));
  var v = select(vec2<f32>(0.0), vec2<f32>(x, y) / max(mass, 1.0), mass > 0.0);
  v.y -= dt * GRAVITY;
  let cell = vec2<i32>(i32(id.x) % GRID, i32(id.x) / GRID);
  if (cell.x < WALL) { v.x = max(v.x, 0.0); }
  if (cell.x > GRID - WALL) { v.x = min(v.x, 0.0); }
  if (cell.y < WALL) { v.y = max(v.y, 0.0); }
  if (cell.y > GRID - WALL) { v.y = min(v.y, 0.0); }
  flow[id.x] = v;
}

@compute @workgroup_size(64)
fn grid_to_particles(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= arrayLength(&position)) { return; }
  let around = cells(position[id.x]);
  var v = vec2<f32>(0.0);
  var c = mat2x2<f32>(0.0, 0.0, 0.0, 0.0);
  for (var y = 0; y < 3; y++) {
    for (var x = 0; x < 3; x++) {
      let weight = around.weights[x].x * around.weights[y].y;
      let distance = (around.offset + vec2<f32>(f32(x), f32(y))) * DX;
      let flowing = weight * flow[number(around.first + vec2<i32>(x, y))];
      v += flowing;
      c += mat2x2<f32>(flowing * distance.x, flowing * distance.y) * (4.0 / (DX * DX));
    }
  }
  velocity[id.x] = v;
  affine[id.x] = c;
  volume[id.x] *= 1.0 + dt * (c[0].x + c[1].y);
  position[id.x] += dt * v;
}
