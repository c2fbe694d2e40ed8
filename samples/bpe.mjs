// Tokenizers of byte-level BPE, out of a `tokenizer.json` of the package tokenizers.

const WORDS = /'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
const DIGIT = /(\p{N})/u;

/** The characters that stand for the 256 bytes: printable ones for themselves. */
function alphabet() {
  const printable = [[33, 126], [161, 172], [174, 255]];
  const isPrintable = (byte) => printable.some(([first, last]) => first <= byte && byte <= last);
  let next = 256;
  const code = (byte) => (isPrintable(byte) ? byte : next++);
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(code(byte)));
}

export class Tokenizer {
  /** Args: description: the contents of `tokenizer.json`. */
  constructor({ model, added_tokens }) {
    this.ids = new Map(Object.entries(model.vocab));
    this.ranks = new Map(model.merges.map((pair, rank) => [[pair].flat().join(" "), rank]));
    this.characters = alphabet();
    this.bytes = new Map(this.characters.map((character, byte) => [character, byte]));
    this.special = new Map(added_tokens.map(({ content, id }) => [content, id]));
    this.words = new Map([...this.ids, ...this.special].map(([word, id]) => [id, word]));
  }

  /** Returns the ids of a text's tokens. */
  encode(text) {
    const escaped = [...this.special.keys()].map(escape);
    const parts = escaped.length ? text.split(new RegExp(`(${escaped.join("|")})`)) : [text];
    return parts.flatMap((part) =>
      this.special.has(part)
        ? [this.special.get(part)]
        : part
            .split(DIGIT)
            .flatMap((piece) => piece.match(WORDS) ?? [])
            .flatMap((word) => this.merged(word).map((piece) => this.ids.get(piece))),
    );
  }

  /** Returns a decoder: a function that returns the text that a further token completes. */
  decoder() {
    const text = new TextDecoder();
    return (id) => {
      const word = this.words.get(id);
      if (this.special.has(word)) return "";
      const bytes = Array.from(word, (character) => this.bytes.get(character));
      return text.decode(new Uint8Array(bytes), { stream: true });
    };
  }

  /** Returns a word in pieces: neighbours are merged, the pair of the lowest rank first. */
  merged(word) {
    let pieces = Array.from(new TextEncoder().encode(word), (byte) => this.characters[byte]);
    while (pieces.length > 1) {
      const pairs = pieces.slice(1).map((right, place) => `${pieces[place]} ${right}`);
      const ranks = pairs.map((pair) => this.ranks.get(pair) ?? Infinity);
      const lowest = Math.min(...ranks);
      if (lowest === Infinity) break;
      const place = ranks.indexOf(lowest);
      pieces = pieces.toSpliced(place, 2, pieces[place] + pieces[place + 1]);
    }
    return pieces;
  }
}

const escape = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
