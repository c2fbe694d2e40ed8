@group(0) @binding(0) var<uniform> seconds: f32;

@vertex fn corners(@builtin(vertex_index) i: u32) -> @builtin(position) vec4<f32> {
  return vec4(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}

@fragment fn balls(@builtin(position) at: vec4<f32>) -> @location(0) vec4<f32> {
  let p = (at.xy - vec2(160.0, 90.0)) / 90.0;
  var field = 0.0;
  for (var i = 0; i < 8; i++) {
    let phase = f32(i) * 0.8 + seconds * (0.5 + 0.07 * f32(i));
    let away = p - vec2(1.4 * sin(phase), 0.7 * cos(1.3 * phase + f32(i)));
    field += 0.03 / dot(away, away);
  }
  let glow = smoothstep(0.6, 1.4, field);
  return vec4(mix(vec3(0.07, 0.1, 0.2), vec3(1.0, 0.55, 0.2), glow) + 0.08 * field, 1.0);
}
