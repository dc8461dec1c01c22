/**
 * Encodes values according to a session description's terms: codes of a few bits, their layout, and an offer's digest.
 * Implements secagg/transport/README.md, "Terms", and compression/README.md, "Scalar quantization".
 * @module
 */
import { random } from "./crypto.js";
import { concat, hash, header, integer, json, must, utf8 } from "./wire.js";

/**
 * The terms of a server's sum, from its session description.
 * @typedef {object} Terms
 * @property {number} clients @property {number} all_clients @property {number} group
 * @property {number} groups @property {number} values @property {number} clip @property {number} bits
 */
const LIMITS = { values: 2 ** 28, clients: 10 ** 6, bits: 16 };
const BLOCK = 1 << 14;
const LAYOUT = 1;

/** Read terms, and refuse invalid ones. @param {string} text @returns {Terms} */
export function readTerms(text) {
  const terms = json(text, "parameter_out_of_range");
  const isInteger = (/** @type {unknown} */ value, /** @type {number} */ most) =>
    Number.isSafeInteger(value) && Number(value) >= 1 && Number(value) <= most;
  const { clients, all_clients, group, groups, values, clip, bits } = terms;
  must(
    isInteger(values, LIMITS.values) && isInteger(clients, LIMITS.clients) &&
      isInteger(all_clients, LIMITS.clients) && clients <= all_clients &&
      isInteger(groups, LIMITS.clients) && isInteger(group, groups) && Object.keys(terms).length === 7,
    "parameter_out_of_range", "the terms of this sum have numbers out of range",
  );
  must(
    isInteger(bits, LIMITS.bits) && bits >= 2 && Number.isFinite(clip) && clip >= 2 ** -100 && clip <= 2 ** 100,
    "parameter_out_of_range", "the terms of this sum have no codes of 2 to 16 bits within a clip",
  );
  must(planOf(terms).ringBits <= 32, "below_floor", "the terms of this sum have codes of more than 32 bits");
  return terms;
}

/** The bits sent per value, and the number of clients that they can sum. @param {Terms} terms */
export function planOf({ bits, all_clients, clip }) {
  const ringBits = bits + Math.ceil(Math.log2(all_clients));
  return {
    ringBits,
    scale: Math.fround(clip / (2 ** (bits - 1) - 1)),
    capacity: 2 ** (ringBits - bits),
  };
}

/** A float of four bytes, big-endian; the machine is little-endian. @param {number} value */
const float32 = (value) => new Uint8Array(Float32Array.of(value).buffer).reverse();

/** A digest of the scheme's public parameters. @param {Terms} terms */
export async function layoutVersion(terms) {
  const { ringBits, scale } = planOf(terms);
  const parameters = concat(
    integer(1, 4), integer(terms.values, 8), // one dimension, with its length
    integer(terms.bits, 4), integer(ringBits, 4), [2], integer(0, 8), // 2: rounded at random
    integer(1, 4), float32(scale), integer(0, 4), // one scale, and its zero point
  );
  return hash("public-parameters", utf8("scalar_quantization"), parameters);
}

/** The layout of the codes, as in an offer. @param {Terms} terms */
export async function layoutOf(terms) {
  const segment = concat([1], integer(planOf(terms).ringBits, 4), integer(terms.values, 8));
  return concat(header(LAYOUT), integer(1, 4), segment, await layoutVersion(terms));
}

/** The digest of the terms that an offer binds. @param {string} text of the session description @param {Terms} terms */
export async function applicationDigest(text, terms) {
  const digest = await hash("http-terms", utf8(text));
  return hash("session-terms", integer(planOf(terms).capacity, 8), digest);
}

/**
 * Values as codes, rounded at random in steps of the scale. Values beyond the clip are clamped, and
 * NaN counts as zero: whether a client answers reveals nothing about its values.
 * @param {ArrayLike<number>} values @param {Terms} terms
 * @returns {{codes: Uint32Array, clamped: number}}
 */
export function encode(values, terms) {
  const { ringBits, scale } = planOf(terms);
  const { bits, clip } = terms;
  const greatest = 2 ** (bits - 1) - 1;
  const mask = ringBits === 32 ? -1 : 2 ** ringBits - 1;
  const codes = new Uint32Array(values.length);
  let clamped = 0;
  for (let start = 0; start < values.length; start += BLOCK) {
    const coins = new Uint32Array(random(4 * BLOCK).buffer);
    const end = Math.min(values.length, start + BLOCK);
    for (let i = start; i < end; i++) {
      const value = Number.isNaN(values[i]) ? 0 : Math.min(clip, Math.max(-clip, values[i]));
      if (value !== values[i]) clamped++;
      const code = Math.floor(value / scale + (coins[i - start] >>> 8) / 2 ** 24);
      codes[i] = Math.min(greatest, Math.max(-greatest - 1, code)) & mask;
    }
  }
  return { codes, clamped };
}
