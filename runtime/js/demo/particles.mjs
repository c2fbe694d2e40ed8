// A liquid, simulated and drawn at the display's rate; positions never leave the device.

const MOST_RUNS = 17; // a frame: with 10 steps of 1e-4 s each, as fast as it would flow
const CODE = `
@group(0) @binding(0) var<storage> positions: array<vec2f>;
struct Corner { @builtin(position) place: vec4f, @location(0) at: vec2f }
@vertex fn corner(@builtin(vertex_index) number: u32) -> Corner {
  let at = array(vec2f(0, 2), vec2f(-1.74, -1), vec2f(1.74, -1))[number % 3]; // around the disc
  return Corner(vec4f(positions[number / 3] * 2 - 1 + at * 0.006, 0, 1), at);
}
@fragment fn disc(corner: Corner) -> @location(0) vec4f {
  let ink = 1 - smoothstep(0.7, 1.0, length(corner.at));
  return vec4f(0.314, 0.667, 0.922, 1) * ink;
}`;

/** Args: program: of samples/browser.py, moves `position`; first: where particles begin. */
export function flow(device, program, first) {
  const context = document.getElementById("water").getContext("webgpu");
  const format = navigator.gpu.getPreferredCanvasFormat();
  context.configure({ device, format, alphaMode: "opaque" });
  const { STORAGE, COPY_DST } = GPUBufferUsage;
  const position = device.createBuffer({ size: first.byteLength, usage: STORAGE | COPY_DST });
  const pipeline = pipelineOf(device, format);
  const group = device.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: [{ binding: 0, resource: { buffer: position } }],
  });
  const begin = () => device.queue.writeBuffer(position, 0, first);
  document.getElementById("again").addEventListener("click", begin);
  begin();

  let runs = 1;
  let busy = false;
  let shown = { frames: 0, since: performance.now() };
  const frame = () => {
    requestAnimationFrame(frame);
    if (busy) return;
    busy = true;
    const started = performance.now();
    const encoder = device.createCommandEncoder();
    for (let run = 0; run < runs; run++) program.encode(encoder, { position });
    const pass = encoder.beginRenderPass({
      colorAttachments: [
        {
          view: context.getCurrentTexture().createView(),
          clearValue: [0.055, 0.086, 0.149, 1],
          loadOp: "clear",
          storeOp: "store",
        },
      ],
    });
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.draw((3 * first.byteLength) / 8);
    pass.end();
    device.queue.submit([encoder.finish()]);
    device.queue.onSubmittedWorkDone().then(() => {
      busy = false;
      // As many runs as leave the display its rate.
      const took = performance.now() - started;
      runs = Math.min(MOST_RUNS, Math.max(1, took < 10 ? runs + 1 : took > 14 ? runs >> 1 : runs));
      shown = rate(shown, runs);
    });
  };
  requestAnimationFrame(frame);
}

/** Counts frames, and tells twice a second how many there were. */
function rate({ frames, since }, runs) {
  const now = performance.now();
  if (now - since < 500) return { frames: frames + 1, since };
  const each = Math.round(((frames + 1) * 1000) / (now - since));
  document.getElementById("rate").textContent = `${each} frames a second, ${runs * 10} steps each`;
  return { frames: 0, since: now };
}

function pipelineOf(device, format) {
  const module = device.createShaderModule({ code: CODE });
  const add = { srcFactor: "one", dstFactor: "one-minus-src-alpha" };
  return device.createRenderPipeline({
    layout: "auto",
    vertex: { module },
    fragment: { module, targets: [{ format, blend: { color: add, alpha: add } }] },
  });
}
