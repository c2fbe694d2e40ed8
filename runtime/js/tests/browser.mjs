// What the tests call in the browser: runs of programs, their bytes as base64.

import { Program, ProgramFile } from "../webnn-program.mjs";

const { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = globalThis.GPUBufferUsage;
const OFFSET = 256; // of arguments in buffers

const encoded = (bytes) => {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
};
const decoded = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const bytesOf = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

let device; // of all runs

export async function load(url) {
  const file = await ProgramFile.open(url);
  if (!device) {
    const adapter = await navigator.gpu.requestAdapter();
    device = await adapter.requestDevice(file.deviceDescriptor(adapter));
    device.onuncapturederror = ({ error }) => console.error(error.message);
  }
  return Program.load(device, file);
}

/** What some runs leave in what is written; inputs and results by name. */
export async function run(url, inputs, runs) {
  const program = await load(url);
  const given = {};
  for (const [name, text] of Object.entries(inputs)) given[name] = decoded(text).buffer;
  let results = {};
  for (let i = 0; i < runs; i++) results = await program.run(given);
  program.destroy();
  return Object.fromEntries(
    Object.entries(results).map(([name, array]) => [
      name,
      encoded(array instanceof ArrayBuffer ? new Uint8Array(array) : bytesOf(array)),
    ]),
  );
}

/** The same for one run that is recorded into an encoder of our own, over parts of buffers. */
export async function encode(url, inputs) {
  const program = await load(url);
  const encoder = device.createCommandEncoder();
  const bindings = {};
  const readable = {};
  for (const { name, size } of program.arguments) {
    const usage = STORAGE | COPY_SRC | COPY_DST;
    const buffer = device.createBuffer({ size: OFFSET + size, usage });
    const bytes = new Uint8Array(size);
    bytes.set(decoded(inputs[name] ?? ""));
    device.queue.writeBuffer(buffer, OFFSET, bytes);
    bindings[name] = { buffer, offset: OFFSET };
    readable[name] = device.createBuffer({ size, usage: MAP_READ | COPY_DST });
  }
  program.encode(encoder, bindings);
  for (const { name, size } of program.arguments)
    encoder.copyBufferToBuffer(bindings[name].buffer, OFFSET, readable[name], 0, size);
  device.queue.submit([encoder.finish()]);
  const results = {};
  for (const { name, access, byteLength } of program.arguments) {
    await readable[name].mapAsync(GPUMapMode.READ);
    if (access !== "read")
      results[name] = encoded(new Uint8Array(readable[name].getMappedRange(0), 0, byteLength));
  }
  program.destroy();
  return results;
}

/** The error that a run ends with, its name first; `given` makes the arguments. */
export async function refused(url, given = () => ({})) {
  try {
    const program = await load(url);
    await program.run(given(device, program));
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
  return "";
}

/** Three runs begun at once, whose input is overwritten at once, and one without `total`. */
export async function overlapping(url, values) {
  const program = await load(url);
  const x = new Float32Array(values);
  const totals = [1, 2, 3].map((value) => new Float32Array(12).fill(value));
  const pending = totals.map((total) => program.run({ x, total }));
  pending.push(program.run({ x }));
  x.fill(99);
  const results = (await Promise.all(pending)).map(({ total }) => total);
  const inPlace = totals.every((total, i) => total === results[i]);
  return { inPlace, totals: results.map((total) => [...total]) };
}

/** What a run whose `total` is transferred meanwhile ends with, and what the next one gives. */
export async function transferred(url, values) {
  const program = await load(url);
  const x = new Float32Array(values);
  const total = new Float32Array(12);
  const pending = program.run({ x, total });
  structuredClone(total.buffer, { transfer: [total.buffer] });
  const error = await pending.catch((reason) => `${reason.name}: ${reason.message}`);
  return { error, total: [...(await program.run({ x })).total] };
}

/** A run over a buffer of the device, which it returns as it was given, and the values in it. */
export async function onDevice(url, values) {
  const program = await load(url);
  const total = device.createBuffer({ size: 48, usage: STORAGE | COPY_SRC });
  const result = await program.run({ x: new Float32Array(values), total });
  const readable = device.createBuffer({ size: 48, usage: MAP_READ | COPY_DST });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(total, 0, readable, 0, 48);
  device.queue.submit([encoder.finish()]);
  await readable.mapAsync(GPUMapMode.READ);
  return { same: result.total === total, total: [...new Float32Array(readable.getMappedRange())] };
}

/** What a run says on a device that is gone. */
export async function lost(url, values) {
  const adapter = await navigator.gpu.requestAdapter();
  const gone = await adapter.requestDevice();
  const program = await Program.load(gone, url);
  gone.destroy();
  try {
    await program.run({ x: new Float32Array(values) });
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
  return "";
}
