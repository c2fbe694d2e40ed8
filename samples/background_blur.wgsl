struct Moment { seconds: f32 }

@group(0) @binding(0) var image: texture_2d<f32>;
@group(0) @binding(1) var frame: texture_storage_2d<rgba8unorm, write>;
@group(0) @binding(2) var<uniform> moment: Moment;

fn ellipse(p: vec2<f32>, centre: vec2<f32>, radii: vec2<f32>) -> f32 {
  return (length((p - centre) / radii) - 1.0) * min(radii.x, radii.y);
}

fn noise(at: vec2<f32>) -> f32 {
  return fract(sin(dot(at, vec2(12.9898, 78.233)) + moment.seconds) * 43758.547) - 0.5;
}

// Someone in front of a photo that the camera pans over. Alpha is 1 where the person is: the truth,
// which the network is fitted to, and never shown at a moment that is asked about.
@compute @workgroup_size(8, 8)
fn camera(@builtin(global_invocation_id) id: vec3<u32>) {
  let size = vec2<f32>(textureDimensions(frame));
  let t = moment.seconds;
  let p = (2.0 * vec2<f32>(id.xy) + 1.0 - size) / size.y * vec2(1.0, -1.0);
  let seen = vec2<f32>(textureDimensions(image));
  let shift = vec2(0.5 + 0.4 * sin(0.31 * t), 0.5 + 0.3 * cos(0.43 * t)) * (seen - size);
  var colour = textureLoad(image, vec2<u32>(shift) + id.xy, 0).rgb;

  let lean = 0.4 * sin(0.9 * t);
  let head = vec2(lean + 0.06 * sin(2.3 * t), 0.22 + 0.04 * cos(1.7 * t));
  let face = ellipse(p, head, vec2(0.24, 0.32));
  let eyes = min(length(p - head - vec2(0.09, 0.05)), length(p - head + vec2(0.09, -0.05))) - 0.025;
  let mouth = ellipse(p, head - vec2(0.0, 0.15), vec2(0.08, 0.02));
  let hair = max(ellipse(p, head + vec2(0.0, 0.06), vec2(0.28, 0.34)),
    head.y + 0.13 + 0.06 * sin(9.0 * (p.x - head.x)) - p.y);
  let neck = max(abs(p.x - 0.5 * (lean + head.x)) - 0.11, abs(p.y + 0.15) - 0.25);
  let body = ellipse(p, vec2(lean, -1.1), vec2(0.68, 0.9));
  let light = 0.85 + 0.35 * (p.x - lean) + 0.1 * p.y;
  let edge = 2.0 / size.y;
  var inside = 0.0;
  let wool = mix(vec3(0.15, 0.22, 0.42), vec3(0.75, 0.72, 0.66), step(0.6, fract(5.0 * p.y)));
  let skin = vec3(0.88, 0.66, 0.53);
  for (var part = 0; part < 6; part++) {
    let distance = array(neck, body, face, hair, eyes, mouth)[part];
    let tone = array(0.85 * skin, wool, skin, vec3(0.24, 0.15, 0.1), vec3(0.1), vec3(0.6, 0.25, 0.22));
    let cover = 1.0 - smoothstep(-edge, edge, distance);
    colour = mix(colour, tone[part] * light, cover);
    inside = max(inside, cover);
  }
  colour += 0.06 * noise(vec2<f32>(id.xy));
  textureStore(frame, id.xy, vec4(colour, inside));
}

@group(0) @binding(0) var sharp: texture_2d<f32>;
@group(0) @binding(1) var mask: texture_2d<f32>;

@vertex
fn corners(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
  return vec4(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}

// The mean of the background around each pixel, and the person over it.
@fragment
fn blend(@builtin(position) position: vec4<f32>) -> @location(0) vec4<f32> {
  let last = vec2<i32>(textureDimensions(sharp)) - 1;
  let at = vec2<i32>(position.xy);
  var sum = vec4(0.0);
  for (var i = 0; i < 96; i++) {  // a spiral of even density
    let angle = 2.39996 * f32(i);
    let offset = 16.0 * sqrt(f32(i) / 96.0) * vec2(cos(angle), sin(angle));
    let there = clamp(at + vec2<i32>(round(offset)), vec2(0), last);
    let weight = 1.0 - textureLoad(mask, there, 0).r + 1e-3;
    sum += vec4(textureLoad(sharp, there, 0).rgb, 1.0) * weight;
  }
  let person = textureLoad(mask, at, 0).r;
  return vec4(mix(sum.rgb / sum.w, textureLoad(sharp, at, 0).rgb, person), 1.0);
}
