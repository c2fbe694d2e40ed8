// Where a tool looks for this name; TypeScript looks for the other.
export * from "./webnn-program.mjs";
