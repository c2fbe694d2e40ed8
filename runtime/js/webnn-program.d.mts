// Types of webnn-program.mjs. WebGPU's own come with TypeScript 6, or the package @webgpu/types.

/** What went wrong, and where. */
export class ProgramError extends Error {
  readonly name: "ProgramError" | "DataError" | "NotSupportedError" | "OperationError";
}

/** The file breaks a rule of the format: it is damaged, or no program. */
export class DataError extends ProgramError {}

/** This device, or this version of the reader, cannot run the program. */
export class NotSupportedError extends ProgramError {}

/** The device failed, or refused the program's code. */
export class OperationError extends ProgramError {}

export type DataType =
  "float32" | "float16" | "int32" | "uint32" | "int64" | "uint64" | "int8" | "uint8";

/** What a run is given. */
export interface Argument {
  readonly name: string;
  readonly dataType: DataType;
  readonly shape: readonly number[];
  /** Bytes of the tensor. */
  readonly byteLength: number;
  /** Bytes of its buffer on the device: whole words. */
  readonly size: number;
  readonly access: "read" | "write" | "read-write";
  /** If not, it may be left out. */
  readonly required: boolean;
}

/** The array of an argument's data type (of float16 also its bits, a Uint16Array), or its bytes. */
export type HostArray =
  | Float32Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Int8Array
  | Uint8Array
  | Uint8ClampedArray
  | ArrayBuffer
  | { readonly BYTES_PER_ELEMENT: 2; readonly buffer: ArrayBufferLike }; // Float16Array

/** Of usage STORAGE; `offset` is a multiple of 256. */
export type DeviceBuffer = GPUBuffer | GPUBufferBinding;

/** A file's URL, or the bytes of it. */
export type Source = string | URL | ArrayBuffer | ArrayBufferView;

/** A program as its file holds it, every rule of the format checked; needs no device. */
export class ProgramFile {
  /** `bytes` are those of the whole file, and kept; messages call it `source`. */
  constructor(bytes: Uint8Array, source: string);
  static open(source: Source): Promise<ProgramFile>;
  readonly arguments: Argument[];
  /** What to ask `requestDevice` for, so that the device runs the program's best variant. */
  deviceDescriptor(adapter: GPUAdapter): {
    requiredFeatures: GPUFeatureName[];
    requiredLimits: Record<string, number>;
  };
}

/** A program on a device. Its own buffers keep what they hold from run to run. */
export class Program {
  private constructor();
  static load(device: GPUDevice, source: Source | ProgramFile): Promise<Program>;
  readonly arguments: Argument[];
  /**
   * Records one run. Every argument is given; what is written shares no buffer with another.
   */
  encode(encoder: GPUCommandEncoder, given: Record<string, DeviceBuffer>): void;
  /**
   * Runs once. Arrays are read before this returns. Resolves, when it is done, to what was written
   * by name: what was given, written in place, or a new array.
   */
  run<Results extends Record<string, HostArray | DeviceBuffer> = Record<string, any>>(
    given?: Record<string, HostArray | DeviceBuffer>,
  ): Promise<Results>;
  /** Frees the program's memory on the device. */
  destroy(): void;
}
