/**
 * Vectors over the integers modulo 2^p: masks from streams, check words, packing.
 * @module
 */
import { SEGMENT, stream, streamKey } from "./crypto.js";

/** @typedef {Uint8Array | Uint16Array | Uint32Array | BigUint64Array} Words */
const TYPES = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: BigUint64Array };
const AHEAD = 8;
const TOGETHER = 4;

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

/**
 * Add four masks, each times its sign, in one walk through memory.
 * @param {Uint32Array} total @param {Uint32Array[]} masks @param {number[]} signs
 */
function addFour(total, [a, b, c, d], [p, q, r, s]) {
  for (let i = 0; i < total.length; i++) {
    total[i] += Math.imul(a[i], p) + Math.imul(b[i], q) + Math.imul(c[i], r) + Math.imul(d[i], s);
  }
}

/** Add up to four masks, or subtract them. @param {any} total @param {any[]} masks @param {number[]} signs */
function addSome(total, masks, signs) {
  if (total instanceof Uint32Array) {
    const rest = TOGETHER - masks.length;
    addFour(total, [...masks, ...Array(rest).fill(masks[0])], [...signs, ...Array(rest).fill(0)]);
    return;
  }
  masks.forEach((mask, k) => {
    if (signs[k] > 0) for (let i = 0; i < mask.length; i++) total[i] += mask[i];
    else for (let i = 0; i < mask.length; i++) total[i] -= mask[i];
  });
}

/** @typedef {{sign: 1 | -1, key: CryptoKey}} Mask */
/**
 * Add and subtract masks, in place; eight streams are computed ahead.
 * @param {Words} total @param {number} p @param {Mask[]} masks
 * @param {number} first segment of the streams
 * @returns {Promise<number>} the segment after the last one
 */
export async function addMasks(total, p, masks, first) {
  const elements = SEGMENT / wordBytes(p);
  const Type = arrayOf(p);
  const signs = masks.map(({ sign }) => sign);
  let segment = first;
  for (let at = 0; at < total.length; at += elements, segment++) {
    const part = total.subarray(at, Math.min(total.length, at + elements));
    /** @type {Promise<ArrayBuffer>[]} */
    const streams = [];
    for (let asked = 0, added = 0; added < masks.length; added += TOGETHER) {
      while (asked < Math.min(masks.length, added + AHEAD)) {
        streams.push(stream(masks[asked++].key, segment, part.byteLength));
      }
      const bytes = await Promise.all(streams.splice(0, TOGETHER));
      addSome(part, bytes.map((each) => new Type(each)), signs.slice(added, added + TOGETHER));
    }
    reduce(part, p);
  }
  return segment;
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
