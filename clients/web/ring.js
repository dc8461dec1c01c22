/**
 * Vectors over the integers modulo 2^p: masks from streams, check words, packing.
 * @module
 */
import { PIECE, SEGMENT, stream, streamKey } from "./crypto.js";

/** @typedef {Uint8Array | Uint16Array | Uint32Array | BigUint64Array} Words */
const TYPES = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: BigUint64Array };
/** Groups of masks whose streams are computed ahead. */
const AHEAD = 2;

/** Bytes of the word that holds an element. @param {number} p @returns {1 | 2 | 4 | 8} */
export const wordBytes = (p) => (p <= 8 ? 1 : p <= 16 ? 2 : p <= 32 ? 4 : 8);

/** The array that holds elements. @param {number} p @returns {any} */
export const arrayOf = (p) => TYPES[wordBytes(p)];

/** The lowest p bits of a word, in the word's type. @param {number} p @returns {any} */
const lowBits = (p) => (p > 32 ? (1n << BigInt(p)) - 1n : 2 ** p - 1);

/** Take a vector modulo 2^p, in place. @param {any} vector @param {number} p @returns {any} */
export function reduce(vector, p) {
  if (p === 8 * wordBytes(p)) return vector;
  const mask = lowBits(p);
  for (let i = 0; i < vector.length; i++) vector[i] &= mask;
  return vector;
}

/** Multiply a vector by a weight, in place. @param {any} vector @param {number} p @param {number} weight */
export function scale(vector, p, weight) {
  if (weight === 1) return;
  const isWide = p > 32;
  const factor = /** @type {any} */ (isWide ? BigInt(weight) : weight);
  for (let i = 0; i < vector.length; i++) {
    vector[i] = isWide ? vector[i] * factor : Math.imul(vector[i], weight);
  }
  reduce(vector, p);
}

/** Add four vectors in one walk through memory. @param {any} total @param {any[]} vectors */
function addFour(total, [a, b, c, d]) {
  for (let i = 0; i < total.length; i++) total[i] += a[i] + b[i] + c[i] + d[i];
}

/** Subtract four vectors. @param {any} total @param {any[]} vectors */
function subtractFour(total, [a, b, c, d]) {
  for (let i = 0; i < total.length; i++) total[i] -= a[i] + b[i] + c[i] + d[i];
}

/** @typedef {{sign: 1 | -1, key: CryptoKey}} Mask */
/** Up to four masks of one sign. @param {Mask[]} masks */
function groupsOf(masks) {
  return [addFour, subtractFour].flatMap((act, i) => {
    const keys = masks.filter(({ sign }) => sign === 1 - 2 * i).map(({ key }) => key);
    const starts = Array.from({ length: Math.ceil(keys.length / 4) }, (_, at) => 4 * at);
    return starts.map((at) => ({ act, keys: keys.slice(at, at + 4) }));
  });
}

/**
 * Add and subtract masks, in place, a piece after another; the streams of the next groups are computed meanwhile.
 * @param {Words} total @param {number} p @param {Mask[]} masks
 * @param {number} first segment of the streams
 * @returns {Promise<number>} the segment after the last one
 */
export async function addMasks(total, p, masks, first) {
  const elements = PIECE / wordBytes(p);
  const Type = arrayOf(p);
  const nothing = new Type(elements);
  const groups = groupsOf(masks);
  const turns = groups.length * Math.ceil(total.length / elements);
  const pieceOf = (/** @type {number} */ turn) => elements * Math.floor(turn / groups.length);
  const streamsOf = (/** @type {number} */ turn) => {
    const start = pieceOf(turn);
    const at = first * SEGMENT + start * wordBytes(p);
    const count = Math.min(PIECE, (total.length - start) * wordBytes(p));
    return Promise.all(groups[turn % groups.length].keys.map((key) => stream(key, at, count)));
  };
  const ahead = Array.from({ length: Math.min(AHEAD, turns) }, (_, turn) => streamsOf(turn));
  for (let turn = 0; turn < turns; turn++) {
    const streams = await /** @type {Promise<ArrayBuffer[]>} */ (ahead.shift());
    if (turn + AHEAD < turns) ahead.push(streamsOf(turn + AHEAD));
    const start = pieceOf(turn);
    const piece = total.subarray(start, start + elements);
    const vectors = streams.map((bytes) => new Type(bytes));
    groups[turn % groups.length].act(piece, [...vectors, nothing, nothing, nothing]);
    if ((turn + 1) % groups.length === 0) reduce(piece, p);
  }
  return first + Math.ceil((total.length * wordBytes(p)) / SEGMENT);
}

/**
 * Inner products of a vector with one public vector, shifted by one element more for each.
 * @param {Words} vector @param {number} p @param {number} count @param {Uint8Array} key
 * @returns {Promise<(number | bigint)[]>}
 */
export async function checkWords(vector, p, count, key) {
  const shifted = new (arrayOf(p))(vector.length + count - 1);
  await addMasks(shifted, p, [{ sign: 1, key: await streamKey(key) }], 0);
  const product = vector instanceof BigUint64Array ? wideProduct : narrowProduct;
  return Array.from({ length: count }, (_, shift) => product(vector, shifted.subarray(shift), p));
}

/** @param {any} left @param {any} right @param {number} p */
function wideProduct(left, right, p) {
  let sum = /** @type {any} */ (0n);
  for (let i = 0; i < left.length; i++) sum += left[i] * right[i];
  return BigInt.asUintN(p, sum);
}

/** @param {any} left @param {any} right @param {number} p */
function narrowProduct(left, right, p) {
  let sum = 0;
  for (let i = 0; i < left.length; i++) sum = (sum + Math.imul(left[i], right[i])) | 0;
  return (sum & lowBits(p)) >>> 0;
}

/** Elements at exactly p bits each, lowest first. The machine is little-endian. @param {Words} vector @param {number} p */
export function pack(vector, p) {
  if (p === 8 * wordBytes(p)) {
    return new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength);
  }
  const isWide = vector instanceof BigUint64Array;
  const words = isWide ? new Uint32Array(vector.buffer, vector.byteOffset, 2 * vector.length) : vector;
  const widths = isWide ? [32, p - 32] : [p, p];
  const out = new Uint32Array(Math.ceil((vector.length * p) / 32));
  let [waiting, bits, at] = [0, 0, 0];
  for (let i = 0; i < words.length; i++) {
    const width = widths[i & 1];
    waiting |= words[i] << bits;
    bits += width;
    if (bits < 32) continue;
    out[at++] = waiting;
    bits -= 32;
    waiting = bits ? words[i] >>> (width - bits) : 0;
  }
  if (bits) out[at] = waiting;
  return new Uint8Array(out.buffer, 0, Math.ceil((vector.length * p) / 8));
}
