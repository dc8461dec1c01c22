/**
 * Bytes on the wire: integers, bound strings, declared messages, sets of clients and hash trees.
 * Implements protocols/README.md and the formats of protocols/pairwise_mask/README.md.
 * @module
 */
import { sha256 } from "./crypto.js";

const PREFIX = "secagg/1/";
const MAGIC = "SAGG";
const FORMAT = 1;
const TAG = 8;
/** Form of the messages that this client supports. */
export const FORM = 3;

/** A message, an offer or a request that this client does not accept. */
export class Refused extends Error {
  /** @param {string} reason @param {string} sentence */
  constructor(reason, sentence) {
    super(sentence);
    this.reason = reason;
  }
}

/**
 * Refuse unless a condition holds.
 * @param {unknown} condition @param {string} reason @param {string} sentence
 * @returns {asserts condition}
 */
export function must(condition, reason, sentence) {
  if (!condition) throw new Refused(reason, sentence);
}

/**
 * The results of all promises, once settled; throws the first error, if any.
 * @template T @param {Promise<T>[]} under @returns {Promise<T[]>}
 */
export async function allOf(under) {
  await Promise.allSettled(under);
  return Promise.all(under);
}

/**
 * Replace the reason of a function's refusal.
 * @template T @param {string} reason @param {() => T} made
 */
export async function as(reason, made) {
  try {
    return await made();
  } catch (error) {
    throw error instanceof Refused ? new Refused(reason, error.message) : error;
  }
}

/** The subject of an offer. @typedef {{task: Uint8Array, round: bigint, model: Uint8Array, application: Uint8Array}} Subject */
const SUBJECT = /** @type {const} */ (["task", "round", "model", "application"]);

/**
 * Refuse an offer whose subject differs from this client's; omitted fields are not compared.
 * @param {Partial<Subject>} subject @param {Subject} offer
 */
export function requireSubject(subject, offer) {
  for (const name of SUBJECT) {
    const own = subject[name];
    // Bytes and integers are both compared by their digits.
    const isSame = own === undefined || String(own) === String(offer[name]);
    must(isSame, "below_floor", `the offer's ${name} differs from this client's`);
  }
}

/** The object that a JSON text encodes. @param {string} text @param {string} reason to refuse anything else */
export function json(text, reason) {
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return value;
  } catch {
    // It is refused below, like any other JSON.
  }
  throw new Refused(reason, "this is not a JSON object");
}

// --- Bytes -----------------------------------------------------------------------------------

/** @param {...(Uint8Array | number[])} parts @returns {Uint8Array} */
export function concat(...parts) {
  const out = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** An integer, big-endian. @param {number | bigint} value @param {number} size */
export function integer(value, size) {
  const out = new Uint8Array(size);
  let rest = BigInt(value);
  for (let i = size - 1; i >= 0; i--) {
    out[i] = Number(rest & 255n);
    rest >>= 8n;
  }
  if (rest) throw new RangeError(`${value} is not an unsigned integer of ${size} bytes`);
  return out;
}

/** @param {Uint8Array} bytes @returns {string} */
export const hex = (bytes) => Array.from(bytes, (x) => x.toString(16).padStart(2, "0")).join("");

/** @param {string} digits @returns {Uint8Array} */
export function unhex(digits) {
  must(/^([0-9a-f]{2})*$/.test(digits), "not_canonical", "bytes must be pairs of hexadecimal digits");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** A big-endian integer of any length. @param {Uint8Array} bytes */
export const toBigInt = (bytes) => (bytes.length ? BigInt(`0x${hex(bytes)}`) : 0n);

/** @param {string} text */
export function utf8(text) {
  return new TextEncoder().encode(text);
}

/** @param {Uint8Array} a @param {Uint8Array} b */
export function equal(a, b) {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) difference |= a[i] ^ b[i];
  return difference === 0;
}

// --- Bound strings ---------------------------------------------------------------------------

/** A label and parts as one string, which is unique to them.
 * @param {string} label @param {...Uint8Array} parts */
export const bind = (label, ...parts) =>
  concat(utf8(PREFIX + label), ...parts.flatMap((part) => [integer(part.length, 4), part]));

/** H of the specification. @param {string} label @param {...Uint8Array} parts */
export const hash = (label, ...parts) => sha256(bind(label, ...parts));

/** A commitment: the secret comes last, without its length.
 * @param {string} label @param {Uint8Array[]} parts @param {Uint8Array} secret */
export async function commit(label, parts, secret) {
  const bound = concat(bind(label, ...parts), secret);
  const digest = await sha256(bound);
  bound.fill(0);
  return digest;
}

// --- Messages --------------------------------------------------------------------------------

/** The first seven bytes of a message, and the tag of its session. @param {number} kind @param {Uint8Array} [digest] */
export const header = (kind, digest = new Uint8Array(0)) =>
  concat(utf8(MAGIC), [FORMAT], integer(kind, 2), digest.slice(0, TAG));

/** Ranges of message kinds; no other number is a kind. */
const KINDS = [
  [1, 6], [16, 28], [32, 49], [64, 75], [80, 80], [84, 84], [86, 90], [100, 112],
  [120, 127], [130, 131], [146, 148],
];

/** The kind that a message's header names. @param {Uint8Array} message */
export function kindOf(message) {
  const kind = (message[5] << 8) | message[6];
  new Reader(message, kind);
  const isKnown = KINDS.some(([first, last]) => first <= kind && kind <= last);
  must(isKnown, "not_canonical", `${kind} is not a kind of message`);
  return kind;
}

/** Bytes prefixed with their length. @param {Uint8Array} bytes */
export const variable = (bytes) => concat(integer(bytes.length, 4), bytes);

/** Reads a message, starting with its header. */
export class Reader {
  /** @param {Uint8Array} message @param {number} kind */
  constructor(message, kind) {
    this.message = message;
    this.at = 0;
    must(equal(this.take(4), utf8(MAGIC)), "not_canonical", "this is not a message of this protocol");
    must(this.number(1) === FORMAT, "wrong_version", "this message has another version");
    must(this.number(2) === kind, "wrong_kind", `expected a message of kind ${kind}`);
  }

  /** The next bytes. @param {number} count */
  take(count) {
    must(this.at + count <= this.message.length, "truncated", "the message ends early");
    this.at += count;
    return this.message.slice(this.at - count, this.at);
  }

  /** An integer below 2^53. @param {number} size */
  number(size) {
    const value = toBigInt(this.take(size));
    must(value <= Number.MAX_SAFE_INTEGER, "not_canonical", "an integer is too large");
    return Number(value);
  }

  /** A length, or a number of items. @param {number} most @param {number} [size] */
  count(most, size = 4) {
    const count = this.number(size);
    must(count <= most, "length_over_limit", `a message has a count of ${count}; the limit is ${most}`);
    return count;
  }

  /** Refuse remaining bytes. */
  end() {
    must(this.at === this.message.length, "trailing_bytes", "bytes follow the end of a message");
  }
}

// Readers of the fields of declared messages, in the order of their tables.

/** @template T @typedef {(reader: Reader) => T} Field */
/** @template {Record<string, Field<any>>} F @typedef {{[name in keyof F]: ReturnType<F[name]>}} Values */

/** Read a whole message. @template {Record<string, Field<any>>} F @param {Uint8Array} message @param {number} kind @param {F} fields */
export function decode(message, kind, fields) {
  const reader = new Reader(message, kind);
  const values = record(fields)(reader);
  reader.end();
  return values;
}

/** Fields one after another. @template {Record<string, Field<any>>} F @param {F} fields @returns {Field<Values<F>>} */
export const record = (fields) => (reader) =>
  /** @type {any} */ (Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field(reader)])));

/** The given number of bytes. @param {number} count @returns {Field<Uint8Array>} */
export const bytes = (count) => (reader) => reader.take(count);

/** An integer below 2^53. @param {number} size @returns {Field<number>} */
export const number = (size) => (reader) => reader.number(size);

/** An integer of 64 bits. @type {Field<bigint>} */
export const long = (reader) => toBigInt(reader.take(8));

/** The number of a choice, in a byte. @param {number} choices @returns {Field<number>} */
export const choice = (choices) => (reader) => {
  const value = reader.number(1);
  must(value < choices, "not_canonical", "a number is not a valid choice");
  return value;
};

/** A boolean in a byte. @type {Field<boolean>} */
export const flag = (reader) => choice(2)(reader) === 1;

/** Refuse a session whose messages have another form. @param {number} form */
export const requireForm = (form) => must(
  form === FORM, "wrong_version",
  `the session has form ${form} of secagg's messages, and this client speaks form ${FORM}; get the server's version`,
);

/** Form of a session's messages, the first field of T0's input. @type {Field<void>} */
export const messageForm = (reader) => requireForm(reader.number(1));

/** Bytes prefixed with their length. @param {number} most @returns {Field<Uint8Array>} */
export const sized = (most) => (reader) => reader.take(reader.count(most));

/** Items prefixed with their number. @template T @param {number} most @param {Field<T>} item @param {number} [size] @returns {Field<T[]>} */
export const list = (most, item, size) => (reader) => {
  const out = [];
  for (let left = reader.count(most, size); left > 0; left--) out.push(item(reader));
  return out;
};

/** Positions below a size, as a set of bits. @param {number} size @returns {Field<number[]>} */
export const set = (size) => (reader) => {
  const bits = reader.take((size + 7) >> 3);
  const out = [...Array(8 * bits.length).keys()].filter((i) => (bits[i >> 3] >> (i & 7)) & 1);
  must(out.every((i) => i < size), "not_canonical", "bits beyond the end of a set are not zero");
  return out;
};

/** The first bytes of a digest, which distinguish sessions. @param {Uint8Array} digest @returns {Field<void>} */
export const tag = (digest) => (reader) =>
  must(equal(reader.take(TAG), digest.slice(0, TAG)), "wrong_session", "the message belongs to another session");

// --- Sets and lists of clients ---------------------------------------------------------------

/** Positions as a set of bits. @param {Iterable<number>} positions @param {number} size */
export function bitSet(positions, size) {
  const out = new Uint8Array((size + 7) >> 3);
  for (const at of positions) out[at >> 3] |= 1 << (at & 7);
  return out;
}

/** Strictly increasing ids: each gap minus one, in seven bits per byte, lowest first.
 * @param {Uint8Array} bytes @param {number} limit @returns {bigint[]} */
export function idsOf(bytes, limit) {
  const ids = [];
  let last = -1n;
  let gap = 0n;
  let shift = 0n;
  for (const byte of bytes) {
    gap |= BigInt(byte & 127) << shift;
    if (byte & 128) {
      shift += 7n;
      must(shift < 70n, "not_canonical", "an id is too long");
      continue;
    }
    must(byte || !shift, "not_canonical", "a gap has a shorter encoding");
    last += gap + 1n;
    must(last < 1n << 64n, "not_canonical", "an id is too large");
    must(ids.length < limit, "length_over_limit", "a list has too many ids");
    ids.push(last);
    gap = shift = 0n;
  }
  must(!shift, "truncated", "a list of ids ends early");
  return ids;
}

// --- Hash trees ------------------------------------------------------------------------------

/** @param {Uint8Array} left @param {Uint8Array} right */
const node = (left, right) => hash("merkle-node", left, right);

/** The root of a tree; a node without a sibling moves up. @param {Uint8Array[]} leaves */
export async function treeRoot(leaves) {
  let level = leaves;
  while (level.length > 1) {
    const pairs = [];
    for (let i = 0; i < level.length; i += 2) pairs.push(level.slice(i, i + 2));
    level = await Promise.all(pairs.map(([left, right]) => (right ? node(left, right) : left)));
  }
  return level[0];
}

/**
 * The root computed from some leaves and the nodes next to their paths.
 * @param {number} count of all leaves @param {Map<number, Uint8Array>} leaves
 * @param {Uint8Array[]} nodes in the order in which they are needed
 */
export async function rootFrom(count, leaves, nodes) {
  let known = leaves;
  let used = 0;
  for (let width = count; width > 1; width = (width + 1) >> 1) {
    /** @type {Map<number, Uint8Array>} */
    const above = new Map();
    for (const at of [...known.keys()].sort((a, b) => a - b)) {
      if (above.has(at >> 1)) continue;
      const own = /** @type {Uint8Array} */ (known.get(at));
      const sibling = at ^ 1;
      if (sibling === width) {
        above.set(at >> 1, own);
        continue;
      }
      const other = known.get(sibling) ?? nodes[used++];
      must(other, "truncated", "a proof has too few nodes");
      above.set(at >> 1, await (at < sibling ? node(own, other) : node(other, own)));
    }
    known = above;
  }
  must(used === nodes.length, "trailing_bytes", "a proof has too many nodes");
  return /** @type {Uint8Array} */ (known.get(0));
}
