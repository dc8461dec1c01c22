/**
 * What a card's terms make of values: codes of a few bits, their layout, and what an offer binds.
 * Implements secagg/transport/README.md, "Terms", and compression/README.md, "Scalar quantization".
 * @module
 */
import { random } from "./crypto.js";
import { arrayOf } from "./ring.js";
import { Refused, concat, hash, header, integer, must, utf8 } from "./wire.js";

/**
 * What a server sums, as its card says.
 * @typedef {object} Terms
 * @property {number} clients @property {number} all_clients @property {number} group
 * @property {number} groups @property {number} values @property {number} clip @property {number} bits
 */
const NAMES = "all_clients,bits,clients,clip,group,groups,values";
const LIMITS = { values: 2 ** 28, clients: 10 ** 6, bits: 24 };
const BLOCK = 1 << 14;
const LAYOUT = 1;

/** An object that a server sent. @param {string} text @returns {any} */
export function objectOf(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    throw new Refused("malformed", "this is no JSON");
  }
}

/** Read terms, and refuse what no sum has. @param {string} text @returns {Terms} */
export function readTerms(text) {
  const terms = objectOf(text);
  must(Object.keys(terms).sort().join() === NAMES, "malformed", `terms of a sum are ${NAMES}`);
  const isInteger = (/** @type {unknown} */ value, /** @type {number} */ most) =>
    Number.isSafeInteger(value) && Number(value) >= 1 && Number(value) <= most;
  const { clients, all_clients, group, groups, values, clip, bits } = terms;
  must(
    isInteger(values, LIMITS.values) && isInteger(clients, LIMITS.clients) &&
      isInteger(all_clients, LIMITS.clients) && clients <= all_clients &&
      isInteger(groups, LIMITS.clients) && isInteger(group, groups),
    "out_of_range", "the terms of this sum have numbers out of range",
  );
  must(
    isInteger(bits, LIMITS.bits) && bits >= 2 && typeof clip === "number",
    "out_of_range", "the terms of this sum have no codes of 2 to 24 bits within a clip",
  );
  const { ringBits, scale } = planOf(terms);
  must(
    ringBits <= 32 && Number.isFinite(scale) && scale > 0,
    "out_of_range", "the terms of this sum have codes of more than 32 bits, or no step",
  );
  return terms;
}

/** Binary digits of an integer. @param {number} value */
const bitLength = (value) => (value ? Math.floor(Math.log2(value)) + 1 : 0);

/** The bits that travel for a value, and how many clients they have room for. @param {Terms} terms */
export function planOf({ bits, all_clients, clip }) {
  const ringBits = bits + bitLength(all_clients - 1);
  return {
    ringBits,
    scale: Math.fround(clip / (2 ** (bits - 1) - 1)),
    capacity: 2 ** (ringBits - bits),
  };
}

/** @param {number} value */
function float32(value) {
  const out = new Uint8Array(4);
  new DataView(out.buffer).setFloat32(0, value);
  return out;
}

/** The layout, with a digest of the scheme's public parameters as its version. @param {Terms} terms */
export async function layoutOf(terms) {
  const { ringBits, scale } = planOf(terms);
  const parameters = concat(
    integer(1, 4), integer(terms.values, 8), // one dimension, of so many values
    integer(terms.bits, 4), integer(ringBits, 4), [2], integer(0, 8), // 2: rounded at random
    integer(1, 4), float32(scale), integer(0, 4), // one scale, and its zero point
  );
  const version = await hash("public-parameters", utf8("scalar_quantization"), parameters);
  return concat(
    header(LAYOUT), integer(1, 4), [1], integer(ringBits, 4), integer(terms.values, 8), version,
  );
}

/** What an offer binds of the terms. @param {string} text of the card @param {Terms} terms */
export async function applicationDigest(text, terms) {
  const digest = await hash("http-terms", utf8(text));
  return hash("session-terms", integer(planOf(terms).capacity, 8), digest);
}

/** Refuse a sum of another number of values. @param {ArrayLike<number>} values @param {Terms} terms */
export function requireFit(values, terms) {
  must(
    values.length === terms.values,
    "layout_mismatch", `this sum is of ${terms.values} values, and ${values.length} are here`,
  );
}

/**
 * Values as codes, rounded at random in steps of the scale. What is out of range counts as the
 * bound, and NaN as zero: whether a client answers tells nothing of its values.
 * @param {ArrayLike<number>} values @param {Terms} terms
 * @returns {{codes: import("./ring.js").Words, clamped: number}}
 */
export function encode(values, terms) {
  const { ringBits, scale } = planOf(terms);
  const greatest = 2 ** (terms.bits - 1) - 1;
  const mask = ringBits === 32 ? -1 : 2 ** ringBits - 1;
  const codes = new (arrayOf(ringBits))(values.length);
  let clamped = 0;
  for (let start = 0; start < values.length; start += BLOCK) {
    const coins = new Uint32Array(random(4 * BLOCK).buffer);
    const end = Math.min(values.length, start + BLOCK);
    for (let i = start; i < end; i++) {
      const value = Number.isNaN(values[i]) ? 0 : values[i];
      const code = Math.floor(value / scale + (coins[i - start] >>> 8) / 2 ** 24);
      const kept = Math.min(greatest, Math.max(-greatest - 1, code));
      if (kept !== code || value !== values[i]) clamped++;
      codes[i] = kept & mask;
    }
  }
  return { codes, clamped };
}
