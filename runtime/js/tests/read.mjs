// Reads many files, and tells what came of each: node read.mjs FILE, or `verdicts` in the browser.

import { ProgramError, ProgramFile } from "../webnn-program.mjs";

/** Args: bytes: the files behind each other, each behind its length, 4 bytes little-endian. */
export function verdicts(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = [];
  for (let at = 0; at < bytes.length;) {
    const begin = at + 4;
    at = begin + view.getUint32(at, true);
    try {
      new ProgramFile(bytes.subarray(begin, at), "file");
      found.push("read");
    } catch (error) {
      found.push(error instanceof ProgramError ? error.name : `${error.stack}`);
    }
  }
  return found;
}

if (globalThis.process?.argv) {
  const { readFileSync } = await import("node:fs");
  const bytes = readFileSync(process.argv[2]);
  console.log(JSON.stringify(verdicts(bytes)));
}
