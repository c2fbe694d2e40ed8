// The passes around the graph: halve the photo before it, compare two enlargements after it.

@group(0) @binding(0) var photo: texture_2d<f32>;
@group(0) @binding(1) var half_size: texture_storage_2d<rgba8unorm, write>;

// Keys' kernel (a = -0.5) at twice its width: what is too fine for half the size is filtered out.
@compute @workgroup_size(8, 8)
fn halve(@builtin(global_invocation_id) id: vec3<u32>) {
  if (any(id.xy >= textureDimensions(half_size))) { return; }
  var taps = array(-0.01171875, -0.03515625, 0.11328125, 0.43359375,
                   0.43359375, 0.11328125, -0.03515625, -0.01171875);
  let last = vec2<i32>(textureDimensions(photo)) - 1;
  var sum = vec4<f32>(0.0);
  for (var y = 0; y < 8; y++) {
    for (var x = 0; x < 8; x++) {
      let p = clamp(2 * vec2<i32>(id.xy) + vec2<i32>(x - 3, y - 3), vec2<i32>(0), last);
      sum += taps[x] * taps[y] * textureLoad(photo, p, 0);
    }
  }
  textureStore(half_size, id.xy, clamp(sum, vec4<f32>(0.0), vec4<f32>(1.0)));
}

@group(0) @binding(0) var low: texture_2d<f32>;
@group(0) @binding(1) var high: texture_2d<f32>;

@vertex
fn corners(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
  return vec4<f32>(f32(i32(i & 1u) * 4 - 1), f32(i32(i >> 1u) * 4 - 1), 0.0, 1.0);
}

// Weights of the four neighbours at distance t from the second, Keys' kernel with a = -0.5.
fn cubic(t: f32) -> vec4<f32> {
  let u = 1.0 - t;
  return vec4<f32>(-0.5 * t * u * u, 1.0 + t * t * (1.5 * t - 2.5),
                   1.0 + u * u * (1.5 * u - 2.5), -0.5 * u * t * t);
}

fn bicubic(at: vec2<f32>) -> vec4<f32> {
  let base = floor(at - 0.5);
  let wx = cubic(at.x - 0.5 - base.x);
  let wy = cubic(at.y - 0.5 - base.y);
  let last = vec2<i32>(textureDimensions(low)) - 1;
  var sum = vec4<f32>(0.0);
  for (var y = 0; y < 4; y++) {
    for (var x = 0; x < 4; x++) {
      let p = clamp(vec2<i32>(base) + vec2<i32>(x - 1, y - 1), vec2<i32>(0), last);
      sum += wx[x] * wy[y] * textureLoad(low, p, 0);
    }
  }
  return clamp(sum, vec4<f32>(0.0), vec4<f32>(1.0));
}

// The middle half of the picture, twice as large: bicubic on the left, the network on the right.
@fragment
fn compare(@builtin(position) position: vec4<f32>) -> @location(0) vec4<f32> {
  let size = vec2<f32>(textureDimensions(high));
  let right = position.x >= size.x;
  let pixel = vec2<f32>(position.x - select(0.0, size.x, right), position.y);
  if (abs(position.x - size.x) < 1.0) { return vec4<f32>(1.0); }
  let at = size * 0.25 + pixel * 0.5;
  let learned = textureLoad(high, vec2<u32>(at), 0);
  return vec4<f32>(select(bicubic(at * 0.5), learned, vec4<bool>(right)).rgb, 1.0);
}
