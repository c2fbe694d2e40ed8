// Runs programs that webnn_py saved (MLProgram.save, MLGraph.compile_to) in the browser.
//
// One module over WebGPU, without dependencies. The format is spec/programs.md; types are in
// webnn-program.d.mts. What is wrong with a file, a device or an argument is a ProgramError.
//
//   const program = await Program.load(device, "digits.mlprogram");
//   const { y } = await program.run({ image: new Float32Array(64) });

/** What went wrong, and where. */
export class ProgramError extends Error {
  get name() {
    return this.constructor.kind;
  }
  static kind = "ProgramError"; // not the class's name, which minifiers change
}

/** The file breaks a rule of the format: it is damaged, or no program. */
export class DataError extends ProgramError {
  static kind = "DataError";
}

/** This device, or this version of the reader, cannot run the program. */
export class NotSupportedError extends ProgramError {
  static kind = "NotSupportedError";
}

/** The device failed, or refused the program's code. */
export class OperationError extends ProgramError {
  static kind = "OperationError";
}

const VERSION = 1;
const MAX_SIZE = 2 ** 40;
const MAX_DOCUMENT = 2 ** 26;
const MAX_TENSOR = 2 ** 31 - 1;
const MAX_DISPATCHES = 2 ** 24;
const MAX_BINDING = 999;
const MAX_WORKGROUPS = 2 ** 32 - 1;
const MAX_DEPTH = 64;
const MAX_RANK = 8;
const PLACE_ALIGNMENT = 256;

const DATA_TYPES = {
  float32: { bytes: 4, arrays: [Float32Array] },
  // As bits where the browser has no Float16Array.
  float16: { bytes: 2, arrays: [globalThis.Float16Array, Uint16Array].filter(Boolean) },
  int32: { bytes: 4, arrays: [Int32Array] },
  uint32: { bytes: 4, arrays: [Uint32Array] },
  int64: { bytes: 8, arrays: [BigInt64Array] },
  uint64: { bytes: 8, arrays: [BigUint64Array] },
  int8: { bytes: 1, arrays: [Int8Array] },
  uint8: { bytes: 1, arrays: [Uint8Array, Uint8ClampedArray] },
};
const SAFETENSORS = new Map(
  Object.entries(DATA_TYPES).map(([name, { bytes }]) => [
    name[0].toUpperCase() + bytes * 8, // "F32"
    bytes,
  ]),
);

const damaged = (where, what) =>
  new DataError(`${where}: ${what}; the file is damaged, or no program`);

const shown = (value) => {
  const text = value instanceof Other ? String(value.value) : JSON.stringify(value);
  return text.length > 60 ? text.slice(0, 57) + "..." : text;
};

// ------------------------------------------------------------------------------------ JSON

/** A number that is no integer of the format: with a fraction or exponent, or too long. */
class Other {
  constructor(value) {
    this.value = value;
  }
}

const WORD = /true|false|null/y;
const WORDS = { true: true, false: false, null: null };
const NUMBER = /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;
const PLAIN = /[^"\\\x00-\x1f]*/y; // of a string
const HEX = /[0-9a-fA-F]{4}/y;
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/** JSON as JSON.parse has it, but no name stands twice in an object, and 1.0 is no integer. */
class JsonReader {
  #text;
  #where;
  #at = 0;

  constructor(bytes, where) {
    this.#where = where;
    if (bytes.length > MAX_DOCUMENT) this.#fail("more than 64 MiB");
    try {
      this.#text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      this.#fail("the bytes are not UTF-8");
    }
  }

  read() {
    const value = this.#value(0);
    if (this.#next() !== undefined) this.#fail("text after the end");
    return value;
  }

  #fail(what) {
    throw damaged(this.#where, `it cannot be read as JSON: ${what} at character ${this.#at}`);
  }

  /** The next character that is no space; undefined at the end. */
  #next() {
    while (" \t\n\r".includes(this.#text[this.#at] ?? "-")) this.#at++;
    return this.#text[this.#at];
  }

  /** What matches a sticky pattern here, which is then behind us. */
  #take(pattern) {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0];
    if (found !== undefined) this.#at += found.length;
    return found;
  }

  #value(depth) {
    if (depth > MAX_DEPTH) this.#fail("lists nested too deeply");
    const first = this.#next();
    if (first === "{") return this.#object(depth + 1);
    if (first === "[") return this.#list(depth + 1);
    if (first === '"') return this.#string();
    const word = this.#take(WORD);
    if (word !== undefined) return WORDS[word];
    return this.#number();
  }

  /** Reads what stands between commas, up to a closing bracket. */
  #separated(close, readOne) {
    this.#at++;
    if (this.#next() !== close) {
      do readOne();
      while (this.#next() === "," && ++this.#at);
    }
    if (this.#next() !== close) this.#fail(`expected '${close}'`);
    this.#at++;
  }

  #object(depth) {
    const members = new Map();
    this.#separated("}", () => {
      if (this.#next() !== '"') this.#fail("expected a name");
      const name = this.#string();
      if (members.has(name)) this.#fail(`${shown(name)} occurs twice in one object`);
      if (this.#next() !== ":") this.#fail("expected ':'");
      this.#at++;
      members.set(name, this.#value(depth));
    });
    return members;
  }

  #list(depth) {
    const items = [];
    this.#separated("]", () => items.push(this.#value(depth)));
    return items;
  }

  #number() {
    const text = this.#take(NUMBER);
    if (text === undefined) this.#fail("expected a value");
    const value = Number(text);
    if (!Number.isFinite(value)) this.#fail("a number out of range");
    return /[.eE]/.test(text) || !Number.isSafeInteger(value) ? new Other(value) : value;
  }

  #string() {
    this.#at++;
    let made = "";
    while (true) {
      made += this.#take(PLAIN);
      const end = this.#text[this.#at++];
      if (end === '"') return made;
      if (end !== "\\") this.#fail("a string without an end, or a control character");
      const escaped = this.#text[this.#at++];
      if (escaped === "u") {
        const code = this.#take(HEX);
        if (code === undefined) this.#fail("expected four hexadecimal digits");
        made += String.fromCharCode(parseInt(code, 16));
      } else if (Object.hasOwn(ESCAPES, escaped ?? "")) made += ESCAPES[escaped];
      else this.#fail("an unknown escape");
    }
  }
}

/** A value of a document that knows where it stands. */
class Field {
  constructor(value, within, step) {
    this.value = value;
    this.within = within; // a Field; of a whole document, what messages call that
    this.step = step;
  }

  get where() {
    if (this.step === undefined) return this.within;
    if (typeof this.step === "number") return `${this.within.where}[${this.step}]`;
    return `${this.within.where}${this.within.step === undefined ? ": " : "."}${this.step}`;
  }

  fail(what) {
    throw damaged(this.where, what);
  }

  unlike(expected) {
    const { value } = this;
    const got = value instanceof Map ? "an object" : Array.isArray(value) ? "a list" : shown(value);
    this.fail(`got ${got}, expected ${expected}`);
  }

  /** The members of an object of any names. */
  mapping() {
    if (!(this.value instanceof Map)) this.unlike("an object");
    return new Map([...this.value].map(([name, value]) => [name, new Field(value, this, name)]));
  }

  /** The members of an object that has just these. */
  members(...names) {
    const given = this.mapping();
    for (const name of names) if (!given.has(name)) this.fail(`member '${name}' is missing`);
    for (const name of given.keys())
      if (!names.includes(name)) this.fail(`member ${shown(name)} is not expected here`);
    return Object.fromEntries(given);
  }

  items(most = Infinity) {
    if (!Array.isArray(this.value)) this.unlike("a list");
    if (this.value.length > most) this.fail(`expected ${most} members at most`);
    return this.value.map((value, number) => new Field(value, this, number));
  }

  text() {
    if (typeof this.value !== "string") this.unlike("a string");
    return this.value;
  }

  /** A string that is not empty. */
  name() {
    if (!this.text()) this.unlike("a string that is not empty");
    return this.value;
  }

  choice(...choices) {
    if (!choices.includes(this.value)) this.unlike(`one of ${choices.join(", ")}`);
    return this.value;
  }

  integer(low, high, of = 1) {
    const { value } = this;
    if (typeof value !== "number" || value < low || value > high)
      this.unlike(`an integer in ${low}..${high}`);
    if (value % of) this.unlike(`a multiple of ${of}`);
    return value;
  }

  number() {
    if (this.value instanceof Other) return this.value.value;
    if (typeof this.value !== "number") this.unlike("a number");
    return this.value;
  }

  boolean() {
    if (typeof this.value !== "boolean") this.unlike("true or false");
    return this.value;
  }
}

// --------------------------------------------------------------------------------- archive

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});

function checksum(bytes) {
  let crc = -1;
  for (let i = 0; i < bytes.length; i++) crc = CRC[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

const FULL = 2 ** 32 - 1; // stands for a size or offset of 64 bits elsewhere
const FULL_COUNT = 2 ** 16 - 1;
const END = { size: 22, sign: "PK\x05\x06", what: "the end of a zip archive" };
const LOCATOR = { size: 20, sign: "PK\x06\x07", what: "the place of a zip64 directory" };
const END_64 = { size: 56, sign: "PK\x06\x06", what: "the end of a zip64 directory" };
const CENTRAL = { size: 46, sign: "PK\x01\x02", what: "an entry of the directory" };
const LOCAL = { size: 30, sign: "PK\x03\x04", what: "the header of an entry" };
const NAME = /^\w[\w.-]*(\/\w[\w.-]*)*$/;

/** The entries of a zip archive: nothing compressed, each once, with nothing between them. */
class Archive {
  #bytes;
  #view;
  #source;
  #entries = new Map();

  constructor(bytes, source) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#source = source;
    const [count, offset, end] = this.#ends();
    let place = offset;
    let position = 0;
    for (let i = 0; i < count; i++) [place, position] = this.#entry(place, position, offset, end);
    if (place !== end || position !== offset)
      this.#fail(position, "bytes follow that belong to no entry");
  }

  where(name) {
    return `${this.#source}: ${name}`;
  }

  /** The bytes of each of these entries, which are all there are, and whose checksums are right. */
  read(...names) {
    for (const name of this.#entries.keys())
      if (!names.includes(name)) throw damaged(this.#source, `entry ${name} is not expected`);
    return names.map((name) => {
      const entry = this.#entries.get(name);
      if (!entry) throw damaged(this.#source, `entry ${name} is missing`);
      if (checksum(entry.bytes) !== entry.crc) throw damaged(this.where(name), "a wrong checksum");
      return entry.bytes;
    });
  }

  #fail(at, what) {
    throw damaged(`${this.#source}: byte ${at}`, what);
  }

  #u16(at) {
    return this.#view.getUint16(at, true);
  }

  #u32(at) {
    return this.#view.getUint32(at, true);
  }

  /** Rounded beyond 2**53, which is behind the end of every file. */
  #u64(at) {
    return Number(this.#view.getBigUint64(at, true));
  }

  #text(at, length) {
    return String.fromCharCode(...this.#bytes.subarray(at, at + length));
  }

  #expect({ size, sign, what }, at) {
    if (at < 0 || at + size > this.#bytes.length) this.#fail(Math.max(at, 0), `${what} is cut off`);
    if (this.#text(at, 4) !== sign) this.#fail(at, `expected ${what}`);
  }

  /** How many entries there are, and where the directory begins and ends. */
  #ends() {
    const at = this.#bytes.length - END.size;
    this.#expect(END, at);
    let end = at;
    let [count, size, offset] = [this.#u16(at + 10), this.#u32(at + 12), this.#u32(at + 16)];
    let parts = this.#u16(at + 4) || this.#u16(at + 6) || this.#u16(at + 8) !== count;
    parts ||= this.#u16(at + 20);
    if ([this.#u16(at + 8), count].includes(FULL_COUNT) || [size, offset].includes(FULL)) {
      this.#expect(LOCATOR, at - LOCATOR.size);
      end = this.#u64(at - LOCATOR.size + 8);
      this.#expect(END_64, end);
      if (end + END_64.size !== at - LOCATOR.size || this.#u64(end + 4) !== END_64.size - 12)
        this.#fail(end, "the end of the zip64 directory is not where it should be");
      [count, size, offset] = [32, 40, 48].map((field) => this.#u64(end + field));
      parts = this.#u32(end + 16) || this.#u32(end + 20) || this.#u64(end + 24) !== count;
      parts ||= this.#u16(at + 20);
    }
    if (parts || count >= FULL_COUNT)
      this.#fail(at, "the archive has several parts, a comment or too many entries");
    if (offset + size !== end) this.#fail(at, "the directory is not where it should be");
    return [count, offset, end];
  }

  /** Reads an entry of the directory and its header; returns the places of the next ones. */
  #entry(place, position, offset, end) {
    this.#expect(CENTRAL, place);
    const names = place + CENTRAL.size;
    const extra = names + this.#u16(place + 28);
    const next = extra + this.#u16(place + 30);
    if (next > end || this.#u16(place + 32) || this.#u16(place + 34))
      this.#fail(place, "an entry has a comment, or more than the directory holds");
    const name = this.#text(names, extra - names);
    if (!NAME.test(name)) this.#fail(place, "an entry has a name that no entry may have");
    if (this.#entries.has(name)) this.#fail(place, `entry ${name} occurs twice in the directory`);
    const [size, packed, at] = this.#wide(
      extra,
      next,
      [24, 20, 42].map((f) => this.#u32(place + f)),
    );
    this.#checkPlain(place + 8, size, packed);
    const crc = this.#u32(place + 16);
    if (at !== position) this.#fail(place, `entry ${name} begins at ${at}, expected ${position}`);

    this.#expect(LOCAL, position);
    const ownExtra = position + LOCAL.size + this.#u16(position + 26);
    const start = ownExtra + this.#u16(position + 28);
    if (start > this.#bytes.length) this.#fail(position, `the header of entry ${name} is cut off`);
    const given = [22, 18].map((field) => this.#u32(position + field));
    const [ownSize, ownPacked] = this.#wide(ownExtra, start, given);
    this.#checkPlain(position + 6, ownSize, ownPacked);
    const ownName = this.#text(position + LOCAL.size, ownExtra - position - LOCAL.size);
    if (ownName !== name || ownSize !== size || this.#u32(position + 14) !== crc)
      this.#fail(position, `the header of entry ${name} differs from the directory`);
    if (start + size > offset) this.#fail(start, `entry ${name} is cut off`);
    this.#entries.set(name, { bytes: this.#bytes.subarray(start, start + size), crc });
    return [next, start + size];
  }

  /** Sizes and an offset, those that are full replaced by those of 64 bits of an extra field. */
  #wide(at, end, numbers) {
    const wide = [];
    while (at + 4 <= end) {
      const [kind, size] = [this.#u16(at), this.#u16(at + 2)];
      at += 4;
      if (at + size > end) this.#fail(at, "an extra field is cut off");
      if (kind === 1) for (let i = at; i + 8 <= at + size; i += 8) wide.push(this.#u64(i));
      at += size;
    }
    return numbers.map((number) => (number === FULL ? (wide.shift() ?? FULL) : number));
  }

  #checkPlain(at, size, packed) {
    const method = this.#u16(at + 2);
    if (method || size !== packed || this.#u16(at) & ~0x800)
      // bit 11: the name is in UTF-8
      this.#fail(at, "an entry is compressed, encrypted or streamed");
  }
}

/** The tensors of weights.safetensors: bytes by name. */
function readTensors(bytes, where) {
  if (bytes.length < 8) throw damaged(where, "it is cut off");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  if (start > bytes.length) throw damaged(where, "its header is cut off");
  const inHeader = `${where}: header`;
  const header = new Field(new JsonReader(bytes.subarray(8, start), inHeader).read(), inHeader);
  const data = bytes.subarray(start);
  const places = [];
  for (const [name, field] of header.mapping()) {
    if (name === "__metadata__") continue;
    const given = field.members("dtype", "shape", "data_offsets");
    let size = SAFETENSORS.get(given.dtype.choice(...SAFETENSORS.keys()));
    for (const item of given.shape.items(MAX_RANK)) size *= item.integer(0, MAX_SIZE);
    const [begin, end] = given.data_offsets.items(2).map((item) => item.integer(0, data.length));
    if (!(end - begin === size)) given.data_offsets.fail(`expected begin and end of ${size} bytes`);
    places.push({ name, field, begin, end });
  }
  places.sort((one, other) => one.begin - other.begin || one.end - other.end);
  let position = 0;
  for (const { field, begin, end } of places) {
    if (begin !== position) field.fail(`its data begins at ${begin}, expected ${position}`);
    position = end;
  }
  if (position !== data.length) header.fail("bytes follow that belong to no tensor");
  return new Map(places.map(({ name, begin, end }) => [name, data.subarray(begin, end)]));
}

// ------------------------------------------------------------------------------------ plan

function readArgument(field) {
  const given = field.members("name", "data_type", "shape", "size", "access", "required");
  const name = given.name.name();
  const dataType = given.data_type.choice(...Object.keys(DATA_TYPES));
  const shape = given.shape.items(MAX_RANK).map((item) => item.integer(1, MAX_TENSOR));
  const byteLength = shape.reduce((bytes, size) => bytes * size, DATA_TYPES[dataType].bytes);
  if (byteLength > MAX_TENSOR) given.shape.fail(`the tensor has more than ${MAX_TENSOR} bytes`);
  const size = Math.ceil(byteLength / 4) * 4;
  if (given.size.integer(4, MAX_SIZE) !== size) given.size.unlike(`${size}`);
  const access = given.access.choice("read", "write", "read-write");
  const required = given.required.boolean();
  if (access !== "read-write" && required !== (access === "read"))
    given.required.fail("expected true if it is only read, false if it is only written");
  return Object.freeze({
    name,
    dataType,
    shape: Object.freeze(shape),
    byteLength,
    size,
    access,
    required,
  });
}

// Limits of WGSL: drivers recurse through what is nested, and expand what is used for each use.
const MAX_WGSL_DEPTH = 512;
const BRACKET_DEPTH = 4;
const MAX_WGSL_TOKENS = 2 ** 17;
const MAX_EXPANDED_TOKENS = 2 ** 18;
const MAX_WGSL_MEMBERS = 2048;
const WGSL_TOKEN = /[\p{XID_Start}_]\p{XID_Continue}*|\d[\w.]*|\.\d\w*|\S/gu;
const WGSL_COMMENT = /\/\/[^\n\v\f\r\x85\u2028\u2029]*|\/\*/g;
const WGSL_COMMENT_END = /\/\*|\*\//g;
const WGSL_KINDS = new Set(["alias", "const", "fn", "override", "struct", "var"]);

/** A shader that a driver can take, as far as its size is concerned. */
function readShader(field) {
  const tokens = withoutComments(field).match(WGSL_TOKEN) ?? [];
  if (tokens.length > MAX_WGSL_TOKENS)
    field.fail(`the WGSL has ${tokens.length} tokens, expected ${MAX_WGSL_TOKENS} at most`);
  checkNesting(tokens, field);
  checkExpansion(usesOf(tokens), field);
  return field.value;
}

function withoutComments(field) {
  const code = field.name();
  let [made, at] = ["", 0];
  while (true) {
    WGSL_COMMENT.lastIndex = at;
    const found = WGSL_COMMENT.exec(code);
    if (!found) return made + code.slice(at);
    made += code.slice(at, found.index) + " ";
    at = WGSL_COMMENT.lastIndex;
    for (let depth = found[0] === "/*" ? 1 : 0; depth; ) {
      WGSL_COMMENT_END.lastIndex = at;
      const end = WGSL_COMMENT_END.exec(code);
      if (!end) field.fail("the WGSL ends within a comment");
      depth += end[0] === "/*" ? 1 : -1;
      at = WGSL_COMMENT_END.lastIndex;
    }
  }
}

/** Adds up, at each token, the open brackets and what stands before it in each of them. */
function checkNesting(tokens, field) {
  const levels = [{ links: 0, elses: 0, members: 0 }];
  let level = levels[0];
  let depth = 0;
  let closed = false;
  for (const token of tokens) {
    if (closed && token !== "else") {
      depth -= level.elses;
      level.elses = 0;
    }
    closed = token === "}";
    if ("([{".includes(token)) {
      if (token === "{") {
        depth -= level.links; // what a condition was is no part of the block
        level.links = 0;
      }
      levels.push((level = { links: 0, elses: 0, members: 0 }));
      depth += BRACKET_DEPTH;
    } else if (")]}".includes(token)) {
      if (levels.length > 1) {
        depth -= BRACKET_DEPTH + level.links + level.elses;
        levels.pop();
        level = levels.at(-1);
      }
    } else if (",;".includes(token)) {
      depth -= level.links;
      level.links = 0;
      level.members += token === "," ? 1 : 0;
      if (level.members >= MAX_WGSL_MEMBERS && levels.length > 1)
        field.fail(`the WGSL has a list of over ${MAX_WGSL_MEMBERS} members`);
    } else if (token === "else") {
      level.elses++;
      depth++;
    } else if ("-+*/%&|^!~<>.=@".includes(token)) {
      level.links++;
      depth++;
    }
    if (depth > MAX_WGSL_DEPTH) field.fail("the WGSL is nested too deeply");
  }
}

/** What each declaration of a module uses, by name: how often; and its number of tokens. */
function usesOf(tokens) {
  const found = new Map();
  let begun = { size: 0, used: new Map() };
  let [name, kind, before, depth] = ["", "", "", 0];
  tokens.forEach((token, place) => {
    begun.size++;
    if ("([{".includes(token)) depth++;
    else if (")]}".includes(token)) depth = Math.max(depth - 1, 0);
    else if (!kind && !depth && WGSL_KINDS.has(token)) kind = token;
    else if (kind && !name && !"<>,".includes(token) && before !== "<" && before !== ",")
      name = token; // `var<storage, read_write>` comes before it
    else if (before !== "." && tokens[place + 1] !== ":")
      begun.used.set(token, (begun.used.get(token) ?? 0) + 1);
    before = token;
    if (depth || !";}".includes(token)) return;
    if (name) {
      const { size, used } = found.get(name) ?? { size: 0, used: new Map() };
      for (const [other, count] of used) begun.used.set(other, (begun.used.get(other) ?? 0) + count);
      found.set(name, { size: begun.size + size, used: begun.used });
    }
    begun = { size: 0, used: new Map() };
    name = kind = "";
  });
  return found;
}

/** Adds up what each declaration is with those that it uses in their places, depth first. */
function checkExpansion(uses, field) {
  const sizes = new Map();
  for (const first of uses.keys()) {
    const path = sizes.has(first) ? [] : [[first, uses.get(first).used.keys()]];
    const open = new Set([first]);
    while (path.length) {
      const [name, others] = path.at(-1);
      let next = others.next();
      while (!next.done && (!uses.has(next.value) || sizes.has(next.value) || next.value === name))
        next = others.next();
      if (!next.done) {
        const other = next.value;
        if (open.has(other)) field.fail(`the WGSL declares ${shown(other)} by way of itself`);
        open.add(other);
        path.push([other, uses.get(other).used.keys()]);
        continue;
      }
      path.pop();
      open.delete(name);
      let { size } = uses.get(name);
      for (const [other, count] of uses.get(name).used) size += count * (sizes.get(other) ?? 0);
      if (size > MAX_EXPANDED_TOKENS)
        field.fail(`the WGSL expands to over ${MAX_EXPANDED_TOKENS} tokens, by what ${shown(name)} uses`);
      sizes.set(name, size);
    }
  }
}

/** Reads program.json. */
class PlanReader {
  #tensors;

  constructor(tensors) {
    this.#tensors = tensors;
  }

  plan(document) {
    const top = document.mapping();
    if (!top.has("format") || !top.has("version"))
      document.fail("members 'format' and 'version' are missing");
    top.get("format").choice("webnn-program");
    const version = top.get("version").integer(1, MAX_SIZE);
    if (version > VERSION)
      throw new NotSupportedError(
        `${document.where}: version ${version} of the format; this reader knows ${VERSION}`,
      );
    const given = document.members(
      "format",
      "version",
      "producer",
      "arguments",
      "shaders",
      "kernels",
      "variants",
    );
    given.producer.text();
    this.arguments = given.arguments.items().map(readArgument);
    if (new Set(this.arguments.map(({ name }) => name)).size < this.arguments.length)
      given.arguments.fail("two arguments have the same name");
    this.shaders = given.shaders.items().map(readShader);
    this.kernels = given.kernels.items().map((item) => this.#kernel(item));
    this.variants = given.variants.items().map((item) => this.#variant(item));
    if (!this.variants.length) given.variants.fail("expected at least one variant");
    return this;
  }

  #kernel(field) {
    const given = field.members("name", "shader", "entry_point", "constants", "bindings");
    const bindings = given.bindings.items().map((item) => {
      const { binding, type, min_size } = item.members("binding", "type", "min_size");
      return {
        binding: binding.integer(0, MAX_BINDING),
        type: type.choice("read-only-storage", "storage", "uniform"),
        minSize: min_size.integer(4, MAX_SIZE, 4),
      };
    });
    if (bindings.some(({ binding }, i) => i && binding <= bindings[i - 1].binding))
      given.bindings.fail("binding numbers must increase");
    const constants = [...given.constants.mapping()].map(([name, value]) => [name, value.number()]);
    return {
      name: given.name.name(),
      shader: given.shader.integer(0, this.shaders.length - 1),
      entryPoint: given.entry_point.name(),
      constants: Object.fromEntries(constants),
      bindings,
    };
  }

  #variant(field) {
    const given = field.members("adapter", "features", "limits", "buffers", "steps", "sections");
    const adapter = given.adapter.choice("any", "hardware", "software");
    const features = given.features.items().map((item) => item.name());
    const limits = [...given.limits.mapping()].map(([k, value]) => [k, value.integer(1, MAX_SIZE)]);
    const buffers = given.buffers.items().map((item) => this.#buffer(item));
    const steps = given.steps.items().map((item) => this.#step(item, buffers));
    const sections = given.sections.items().map((item) => {
      const { first, count, repeat } = item.members("first", "count", "repeat");
      const begin = first.integer(0, steps.length - 1);
      return {
        steps: steps.slice(begin, begin + count.integer(1, steps.length - begin)),
        repeat: repeat.integer(1, MAX_DISPATCHES),
      };
    });
    let dispatches = 0;
    for (const part of sections)
      for (const step of part.steps) dispatches += step.times * part.repeat;
    if (dispatches < 1 || dispatches > MAX_DISPATCHES)
      given.sections.fail(`got ${dispatches} dispatches, expected 1..${MAX_DISPATCHES}`);
    const ends = buffers.map(() => 0);
    for (const { places } of steps)
      for (const { kind, index, offset, size } of places)
        if (kind === "buffer") ends[index] = Math.max(ends[index], offset + size);
    given.buffers.items().forEach((item, i) => {
      if (ends[i] !== buffers[i].size)
        item.fail(`the buffer has ${buffers[i].size} bytes, but steps use ${ends[i]}`);
    });
    return { adapter, features, limits, buffers, steps, sections };
  }

  #buffer(field) {
    const given = field.members("size", "usage", "contents");
    const size = given.size.integer(4, MAX_SIZE, 4);
    const contents = given.contents.items().map((item) => {
      const part = item.members("tensor", "offset");
      const bytes = this.#tensors.get(part.tensor.text());
      if (!bytes) part.tensor.unlike("the name of a tensor of this file");
      const offset = part.offset.integer(0, size, PLACE_ALIGNMENT);
      if (offset + bytes.length > size)
        item.fail(`${bytes.length} bytes at offset ${offset} exceed the buffer of ${size} bytes`);
      return { bytes, offset };
    });
    return { size, usage: given.usage.choice("storage", "uniform"), contents };
  }

  #step(field, buffers) {
    const given = field.members("kernel", "places", "workgroups", "times");
    const kernel = given.kernel.integer(0, this.kernels.length - 1);
    const { bindings } = this.kernels[kernel];
    const items = given.places.items();
    if (items.length !== bindings.length)
      given.places.fail(
        `got ${items.length} places, expected ${bindings.length} as the kernel has bindings`,
      );
    const places = items.map((item) => this.#place(item, buffers));
    places.forEach((place, i) => this.#checkBound(place, bindings[i], places, buffers, items[i]));
    const workgroups = given.workgroups.items(3).map((item) => item.integer(1, MAX_WORKGROUPS));
    if (workgroups.length !== 3) given.workgroups.fail("expected three numbers");
    return { kernel, places, workgroups, times: given.times.integer(1, MAX_DISPATCHES) };
  }

  #place(field, buffers) {
    const kind = field.mapping().has("argument") ? "argument" : "buffer";
    const given = field.members(kind, "offset", "size");
    const among = kind === "argument" ? this.arguments : buffers;
    const index = given[kind].integer(0, among.length - 1);
    const offset = given.offset.integer(0, MAX_SIZE, PLACE_ALIGNMENT);
    const size = given.size.integer(4, MAX_SIZE, 4);
    if (offset + size > among[index].size)
      field.fail(
        `bytes ${offset}..${offset + size} exceed the ${kind} of ${among[index].size} bytes`,
      );
    return { kind, index, offset, size };
  }

  #checkBound({ kind, index, size }, { type, minSize }, places, buffers, field) {
    if (size < minSize) field.fail(`got ${size} bytes, but the kernel needs ${minSize}`);
    const usage = kind === "argument" ? "storage" : buffers[index].usage;
    if ((usage === "uniform") !== (type === "uniform"))
      field.fail(`a ${usage} buffer is bound as ${type}`);
    if (type !== "storage") return;
    if (kind === "argument" && this.arguments[index].access === "read")
      field.fail(
        `a kernel writes argument ${shown(this.arguments[index].name)}, which is read-only`,
      );
    if (places.filter((other) => other.kind === kind && other.index === index).length > 1)
      field.fail("a step binds memory twice that it writes");
  }
}

/** The limits that a variant needs: those that it tells, and what its sizes ask for. */
function neededLimits(plan, variant) {
  const needed = new Map(variant.limits);
  const need = (name, value) => needed.set(name, Math.max(needed.get(name) ?? 0, value));
  for (const { size } of [...plan.arguments, ...variant.buffers]) need("maxBufferSize", size);
  for (const { kernel, places, workgroups } of variant.steps) {
    const kinds = plan.kernels[kernel].bindings.map(({ type }) =>
      type === "uniform" ? "Uniform" : "Storage",
    );
    places.forEach(({ size }, i) => need(`max${kinds[i]}BufferBindingSize`, size));
    for (const kind of new Set(kinds))
      need(`max${kind}BuffersPerShaderStage`, kinds.filter((other) => other === kind).length);
    need("maxComputeWorkgroupsPerDimension", Math.max(...workgroups));
  }
  return needed;
}

/** What a device or adapter lacks for a variant, in words; empty if it can run it. */
function lacking(has, plan, variant) {
  const info = has.adapterInfo ?? has.info; // of a device, of an adapter
  const software = Boolean(info?.isFallbackAdapter || info?.architecture === "swiftshader");
  const kind = software ? "software" : "hardware";
  const missing = [];
  if (![kind, "any"].includes(variant.adapter))
    missing.push(`a ${variant.adapter} adapter (it has a ${kind} one)`);
  for (const name of variant.features)
    if (!has.features.has(name)) missing.push(`the feature ${name}`);
  for (const [name, value] of neededLimits(plan, variant))
    if (!(has.limits[name] >= value))
      missing.push(`${name} of ${value} (it has ${has.limits[name]})`);
  return missing.join(", ");
}

async function bytesOf(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return bytesIn(source);
  let response;
  try {
    response = await fetch(source);
  } catch (error) {
    throw new ProgramError(`${source}: it cannot be fetched: ${error.message}`);
  }
  if (!response.ok) throw new ProgramError(`${source}: HTTP status ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** A program as its file holds it, every rule of the format checked; needs no device. */
export class ProgramFile {
  #plan;

  /** Args: bytes: a Uint8Array of the whole file, which is kept; source: what messages call it. */
  constructor(bytes, source) {
    const archive = new Archive(bytes, source);
    const [text, weights] = archive.read("program.json", "weights.safetensors");
    const tensors = readTensors(weights, archive.where("weights.safetensors"));
    const where = archive.where("program.json");
    const document = new JsonReader(text, where).read();
    this.#plan = new PlanReader(tensors).plan(new Field(document, where));
  }

  /** Reads a file: its URL, or the bytes of it. */
  static async open(source) {
    const isAddress = typeof source === "string" || source instanceof URL;
    return new ProgramFile(await bytesOf(source), isAddress ? String(source) : "program");
  }

  get arguments() {
    return [...this.#plan.arguments];
  }

  /** What runs are made of; may change from version to version. */
  get plan() {
    return this.#plan;
  }

  /** What to ask an adapter's `requestDevice` for, so that the device runs the program's best variant. */
  deviceDescriptor(adapter) {
    const { features, limits } = this.variantFor(adapter);
    return { requiredFeatures: features, requiredLimits: Object.fromEntries(limits) };
  }

  /** The first variant that a device or adapter can run. */
  variantFor(has) {
    const missing = this.#plan.variants.map((variant) => lacking(has, this.#plan, variant));
    const chosen = missing.indexOf("");
    if (chosen < 0)
      throw new NotSupportedError(
        "this device cannot run the program: " +
          missing.map((what, i) => `variant ${i} needs ${what}`).join("; "),
      );
    return this.#plan.variants[chosen];
  }
}

// --------------------------------------------------------------------------------- running

const FILTERS = ["validation", "out-of-memory", "internal"];

/** What `make` returns, which is called at once; what the device finds wrong is thrown. */
async function checked(device, what, make) {
  for (const filter of FILTERS) device.pushErrorScope(filter);
  let made;
  let thrown;
  try {
    made = make();
  } catch (error) {
    thrown = error;
  }
  // Before anything is awaited: others push scopes, too.
  const errors = await Promise.all(FILTERS.map(() => device.popErrorScope().catch((e) => e)));
  const found = [...new Set(errors.filter(Boolean).map((error) => error.message))];
  if (thrown instanceof ProgramError) throw thrown;
  if (thrown) found.push(thrown.message);
  if (found.length) throw new OperationError(`${what}: ${found.join(" ")}`);
  return made;
}

function bytesIn(array) {
  if (array instanceof ArrayBuffer) return new Uint8Array(array);
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

const isOnDevice = (given) =>
  given instanceof GPUBuffer || (given?.buffer instanceof GPUBuffer && !ArrayBuffer.isView(given));

const fail = ({ name }, what) => {
  throw new ProgramError(`argument '${name}': ${what}`);
};

/** Where an argument lies on the device. */
function onDevice(argument, given) {
  const { buffer, offset = 0, size } = given instanceof GPUBuffer ? { buffer: given } : given;
  const length = size ?? buffer.size - offset;
  if (!Number.isInteger(offset) || offset < 0 || offset % PLACE_ALIGNMENT)
    fail(argument, `an offset of ${offset}, expected a multiple of ${PLACE_ALIGNMENT}`);
  if (!(length >= argument.size && offset + length <= buffer.size))
    fail(
      argument,
      `${length} bytes from ${offset} of a buffer of ${buffer.size}, expected ${argument.size}`,
    );
  if (!(buffer.usage & GPUBufferUsage.STORAGE)) fail(argument, "the buffer's usage lacks STORAGE");
  return { buffer, offset };
}

/** The bytes of an argument in host memory. */
function inMemory(argument, given) {
  const { arrays } = DATA_TYPES[argument.dataType];
  if (![...arrays, ArrayBuffer].some((kind) => given instanceof kind)) {
    const expected = [...arrays, ArrayBuffer].map(({ name }) => name).join(", ");
    const got = given?.constructor?.name ?? String(given);
    fail(argument, `got ${got}, expected ${expected}, GPUBuffer or GPUBufferBinding`);
  }
  const bytes = bytesIn(given);
  if (bytes.length !== argument.byteLength)
    fail(argument, `${bytes.length} bytes, expected ${argument.byteLength}`);
  return bytes;
}

/** A program on a device. Its own buffers keep what they hold from run to run. */
export class Program {
  #device;
  #arguments;
  #steps;
  #sections;
  #kernels = new Map(); // layout and pipeline by number
  #buffers = [];
  #groups = new Map(); // by step
  #bound = []; // what the groups bind of arguments
  #own = []; // a buffer for each argument that is given in host memory
  #staging; // buffers by argument that are free to read results with

  constructor(token, device, { arguments: expected, variant: { steps, sections } }) {
    if (token !== FILTERS) throw new TypeError("programs are made by Program.load");
    this.#device = device;
    this.#arguments = expected;
    [this.#steps, this.#sections] = [steps, sections]; // not the file, which may be large
    this.#staging = this.#arguments.map(() => []);
  }

  /** Args: device: a GPUDevice; source: the file's URL, the bytes of it, or a ProgramFile. */
  static async load(device, source) {
    const file = source instanceof ProgramFile ? source : await ProgramFile.open(source);
    const variant = file.variantFor(device);
    const program = new Program(FILTERS, device, { arguments: file.arguments, variant });
    try {
      await Promise.all([program.#makePipelines(file.plan), program.#makeBuffers(variant.buffers)]);
    } catch (error) {
      program.destroy();
      throw error;
    }
    return program;
  }

  /** What a run is given. */
  get arguments() {
    return [...this.#arguments];
  }

  /**
   * Records one run into a GPUCommandEncoder. Every argument is given, as a GPUBuffer or a binding
   * of one, of usage STORAGE; what is written shares no buffer with another.
   */
  encode(encoder, given) {
    const values = this.#named(given);
    const places = this.#arguments.map((argument) => {
      const value = values.get(argument.name);
      if (!isOnDevice(value)) fail(argument, "expected a buffer of the device");
      return onDevice(argument, value);
    });
    this.#record(encoder, places);
  }

  /**
   * Runs once. Arguments are typed arrays, GPUBuffers or bindings of them; arrays are read before
   * this returns. Resolves, when it is done, to what was written by name: what was given, written
   * in place, or a new array.
   */
  async run(given = {}) {
    const { results, downloads, done } = await checked(this.#device, "running a program", () =>
      this.#submit(this.#named(given)),
    );
    try {
      await done;
    } catch (error) {
      throw new OperationError(`running a program: ${error.message}`);
    }
    const lost = [];
    for (const { number, staging, target } of downloads) {
      if (!target.length) lost.push(this.#arguments[number]); // of what is detached
      else target.set(new Uint8Array(staging.getMappedRange(), 0, target.length));
      staging.unmap();
      this.#staging[number].push(staging);
    }
    if (lost.length) fail(lost[0], "its memory was transferred while the program ran");
    return results;
  }

  /** Frees the program's memory on the device. */
  destroy() {
    for (const buffer of [...this.#buffers, ...this.#own, ...this.#staging.flat()])
      buffer?.destroy();
  }

  async #makePipelines({ shaders, kernels }) {
    const used = new Set(this.#steps.map(({ kernel }) => kernel));
    const modules = [];
    const pipelines = [];
    const created = checked(this.#device, "compiling a program", () => {
      for (const number of used) {
        const kernel = kernels[number];
        const code = shaders[kernel.shader];
        modules[kernel.shader] ??= this.#device.createShaderModule({ code });
        pipelines.push(this.#makePipeline(number, kernel, modules[kernel.shader]));
      }
    });
    // A pipeline tells more of what is wrong with its code than the device does.
    for (const { reason } of await Promise.allSettled([...pipelines, created]))
      if (reason) throw reason;
  }

  #layout({ name, bindings }) {
    return this.#device.createBindGroupLayout({
      label: name,
      entries: bindings.map(({ binding, type, minSize }) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type, minBindingSize: minSize },
      })),
    });
  }

  async #makePipeline(number, { name, entryPoint, constants, bindings }, module) {
    const layout = this.#layout({ name, bindings });
    try {
      const pipeline = await this.#device.createComputePipelineAsync({
        label: name,
        layout: this.#device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint, constants },
      });
      this.#kernels.set(number, { layout, pipeline, bindings });
    } catch (error) {
      const { messages } = await module.getCompilationInfo();
      const found = messages
        .filter(({ type }) => type === "error")
        .map(({ lineNum, linePos, message }) => `line ${lineNum}:${linePos}: ${message}`);
      const why = found.length ? found.join(" ") : error.message;
      throw new OperationError(`compiling the kernel '${name}': ${why}`);
    }
  }

  #makeBuffers(buffers) {
    return checked(this.#device, "making the buffers of a program", () => {
      for (const { size, usage, contents } of buffers) {
        const buffer = this.#device.createBuffer({
          size,
          usage: usage === "uniform" ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE,
          mappedAtCreation: contents.length > 0,
        });
        this.#buffers.push(buffer);
        if (!contents.length) continue;
        const memory = new Uint8Array(buffer.getMappedRange());
        for (const { bytes, offset } of contents) memory.set(bytes, offset);
        buffer.unmap();
      }
    });
  }

  /** What is given, by name. */
  #named(given) {
    const values = new Map(Object.entries(given));
    for (const name of values.keys())
      if (!this.#arguments.some((argument) => argument.name === name))
        fail({ name }, "the program has no argument of this name");
    return values;
  }

  /** Uploads, records and submits a run; returns its results, and what they are read with. */
  #submit(values) {
    const sources = this.#arguments.map((argument) => {
      const value = values.get(argument.name);
      if (value !== undefined)
        return isOnDevice(value)
          ? { value, place: onDevice(argument, value) }
          : { value, bytes: inMemory(argument, value) };
      if (argument.required) fail(argument, "it is missing");
      return {};
    });
    this.#checkMemory(sources);
    const encoder = this.#device.createCommandEncoder();
    const places = sources.map(({ place, bytes }, number) => {
      if (place) return place;
      const { access, size } = this.#arguments[number];
      const buffer = this.#ownBuffer(number);
      if (bytes && access !== "write") this.#upload(buffer, bytes);
      else if (!bytes && access === "read-write") encoder.clearBuffer(buffer, 0, size);
      return { buffer, offset: 0 };
    });
    this.#record(encoder, places);
    const results = [];
    const downloads = [];
    this.#arguments.forEach((argument, number) => {
      if (argument.access === "read") return;
      const result = sources[number].value ?? this.#newArray(argument);
      results.push([argument.name, result]);
      if (sources[number].place) return;
      const staging = this.#staging[number].pop() ?? this.#stagingBuffer(argument);
      encoder.copyBufferToBuffer(places[number].buffer, 0, staging, 0, argument.size);
      downloads.push({ number, staging, target: bytesIn(result) });
    });
    const { queue } = this.#device;
    queue.submit([encoder.finish()]);
    const mapped = downloads.map(({ staging }) => staging.mapAsync(GPUMapMode.READ));
    const done = Promise.all([queue.onSubmittedWorkDone(), ...mapped]);
    done.catch(() => {}); // whoever awaits it hears of it
    return { results: Object.fromEntries(results), downloads, done };
  }

  #newArray({ dataType, byteLength }) {
    const [kind] = DATA_TYPES[dataType].arrays;
    return new kind(byteLength / kind.BYTES_PER_ELEMENT);
  }

  #upload(buffer, bytes) {
    const whole = bytes.length - (bytes.length % 4);
    this.#device.queue.writeBuffer(buffer, 0, bytes, 0, whole);
    if (whole === bytes.length) return;
    const rest = new Uint8Array(4);
    rest.set(bytes.subarray(whole));
    this.#device.queue.writeBuffer(buffer, whole, rest);
  }

  #ownBuffer(number) {
    const { STORAGE, COPY_SRC, COPY_DST } = GPUBufferUsage;
    const { size } = this.#arguments[number];
    const usage = STORAGE | COPY_SRC | COPY_DST;
    return (this.#own[number] ??= this.#device.createBuffer({ size, usage }));
  }

  #stagingBuffer({ size }) {
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    return this.#device.createBuffer({ size, usage });
  }

  /** What is written in host memory shares none with anything else that is given. */
  #checkMemory(sources) {
    sources.forEach(({ bytes }, i) => {
      if (!bytes || this.#arguments[i].access === "read") return;
      sources.forEach(({ bytes: other }, j) => {
        if (i === j || other?.buffer !== bytes.buffer) return;
        const [begin, end] = [bytes.byteOffset, bytes.byteOffset + bytes.length];
        if (other.byteOffset < end && begin < other.byteOffset + other.length)
          this.#failShared(i, j, "shares memory with it");
      });
    });
  }

  #checkBuffers(places) {
    places.forEach(({ buffer }, i) => {
      if (this.#arguments[i].access === "read") return;
      const j = places.findIndex((other, k) => k !== i && other.buffer === buffer);
      if (j >= 0) this.#failShared(i, j, "is in the same buffer");
    });
  }

  #failShared(written, other, how) {
    fail(this.#arguments[written], `it is written, and '${this.#arguments[other].name}' ${how}`);
  }

  #record(encoder, places) {
    this.#checkBuffers(places);
    this.#bind(places);
    const pass = encoder.beginComputePass();
    let pipelineOf;
    let groupOf;
    for (const { steps, repeat } of this.#sections)
      for (let i = 0; i < repeat; i++)
        for (const step of steps) {
          if (pipelineOf !== step.kernel) pass.setPipeline(this.#kernels.get(step.kernel).pipeline);
          if (groupOf !== step) pass.setBindGroup(0, this.#groups.get(step));
          [pipelineOf, groupOf] = [step.kernel, step];
          for (let time = 0; time < step.times; time++) pass.dispatchWorkgroups(...step.workgroups);
        }
    pass.end();
  }

  /** Bind groups of the last run serve the next one over the same buffers. */
  #bind(places) {
    const same = places.every(
      ({ buffer, offset }, i) =>
        this.#bound[i]?.buffer === buffer && this.#bound[i].offset === offset,
    );
    for (const step of this.#steps) {
      const given = step.places.some(({ kind }) => kind === "argument");
      if (!this.#groups.has(step) || (given && !same))
        this.#groups.set(step, this.#group(step, places));
    }
    this.#bound = places;
  }

  #group({ kernel, places: bound }, places) {
    const { layout, bindings } = this.#kernels.get(kernel);
    return this.#device.createBindGroup({
      layout,
      entries: bound.map(({ kind, index, offset, size }, i) => {
        const owner =
          kind === "argument" ? places[index] : { buffer: this.#buffers[index], offset: 0 };
        const resource = { buffer: owner.buffer, offset: owner.offset + offset, size };
        return { binding: bindings[i].binding, resource };
      }),
    });
  }
}
