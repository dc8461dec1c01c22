/**
 * Vectors over the integers modulo 2^p: masks from streams, check words, packing. Elements of up to 32 bits are in
 * a Uint32Array, wider ones in a BigUint64Array: a loop over arrays of only one type is twice as fast.
 * @module
 */
import { PIECE, SEGMENT, stream, streamKey } from "./crypto.js";

/** @typedef {Uint32Array | BigUint64Array} Words */
/** @typedef {{sign: 1 | -1, key: CryptoKey}} Mask */
/** The words of a stream, by their bytes. @type {Record<number, any>} */
const STREAMED = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: BigUint64Array };
/** Groups of streams that are computed ahead, and streams that are added in one pass through memory. */
const [AHEAD, GROUP] = [2, 4];

/** Bytes of a stream that make an element. @param {number} p */
export const wordBytes = (p) => (p <= 8 ? 1 : p <= 16 ? 2 : p <= 32 ? 4 : 8);

/** The array that holds elements. @param {number} p @returns {any} */
export const arrayOf = (p) => (p > 32 ? BigUint64Array : Uint32Array);

/** The lowest p bits of a word, in the word's type. @param {number} p @returns {any} */
const lowBits = (p) => (p > 32 ? (1n << BigInt(p)) - 1n : 2 ** p - 1);

/** Reduce a vector modulo 2^p, in place. @param {any} vector @param {number} p @returns {any} */
export function reduce(vector, p) {
  const mask = lowBits(p);
  for (let i = 0; i < vector.length; i++) vector[i] &= mask;
  return vector;
}

/** @param {any} vector */
function negate(vector) {
  for (let i = 0; i < vector.length; i++) vector[i] = -vector[i];
}

/** @param {any} total @param {any[]} vectors all vectors of a group */
function addGroup(total, [a, b, c, d]) {
  for (let i = 0; i < total.length; i++) total[i] += a[i] + b[i] + c[i] + d[i];
}

/**
 * Add and subtract masks, in place.
 * @param {Words} total @param {number} p @param {Mask[]} masks
 * @param {number} first segment of the streams
 * @returns {Promise<number>} the segment after the last one
 */
export async function addMasks(total, p, masks, first) {
  for (const sign of [-1, 1]) {
    negate(total); // Masks added between the two negations are subtracted.
    const keys = masks.filter((mask) => mask.sign === sign).map(({ key }) => key);
    await addStreams(total, p, keys, first);
  }
  reduce(total, p);
  return first + Math.ceil((total.length * wordBytes(p)) / SEGMENT);
}

/**
 * Add streams piece by piece, while those of the next groups are computed.
 * @param {Words} total @param {number} p @param {CryptoKey[]} keys @param {number} first segment
 */
async function addStreams(total, p, keys, first) {
  const size = wordBytes(p);
  const elements = PIECE / size;
  const nothing = new (arrayOf(p))(elements);
  const turns = [];
  for (let start = 0; start < total.length; start += elements) {
    const piece = total.subarray(start, start + elements);
    for (let at = 0; at < keys.length; at += GROUP) turns.push({ start, piece, own: keys.slice(at, at + GROUP) });
  }
  const begun = (/** @type {{start: number, piece: Words, own: CryptoKey[]}} */ { start, piece, own }) =>
    Promise.all(own.map((key) => stream(key, first * SEGMENT + start * size, piece.length * size)));
  const ahead = turns.slice(0, AHEAD).map(begun);
  for (const [turn, { piece }] of turns.entries()) {
    const streams = await /** @type {Promise<ArrayBuffer[]>} */ (ahead.shift());
    if (turn + AHEAD < turns.length) ahead.push(begun(turns[turn + AHEAD]));
    const words = streams.map((bytes) => new STREAMED[size](bytes));
    const vectors = size < 4 ? words.map((each) => new Uint32Array(each)) : words;
    addGroup(piece, [...vectors, nothing, nothing, nothing]);
  }
}

/**
 * Inner products of a vector with one public vector, shifted by one more element each time.
 * @param {Words} vector @param {number} p @param {number} count @param {Uint8Array} key
 * @returns {Promise<(number | bigint)[]>}
 */
export async function checkWords(vector, p, count, key) {
  const shifted = new (arrayOf(p))(vector.length + count - 1);
  await addMasks(shifted, p, [{ sign: 1, key: await streamKey(key) }], 0);
  const product = p > 32 ? wideProduct : narrowProduct;
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
  const isWide = p > 32;
  const words = new Uint32Array(vector.buffer, vector.byteOffset, (isWide ? 2 : 1) * vector.length);
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
