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

/** The lowest p bits of a word, for p up to 32. @param {number} p */
const lowBits = (p) => (p === 32 ? 0xffffffff : 2 ** p - 1);

/** Take a vector modulo 2^p, in place. @template {Words} T @param {T} vector @param {number} p */
export function reduce(vector, p) {
  if (p === 8 * wordBytes(p)) return vector;
  if (vector instanceof BigUint64Array) {
    const mask = (1n << BigInt(p)) - 1n;
    for (let i = 0; i < vector.length; i++) vector[i] &= mask;
  } else {
    const mask = lowBits(p);
    for (let i = 0; i < vector.length; i++) vector[i] &= mask;
  }
  return vector;
}

/** Multiply a vector by a weight, in place. @param {Words} vector @param {number} p @param {number} weight */
export function scale(vector, p, weight) {
  if (weight === 1) return;
  if (vector instanceof BigUint64Array) {
    for (let i = 0; i < vector.length; i++) vector[i] *= BigInt(weight);
  } else {
    for (let i = 0; i < vector.length; i++) vector[i] = Math.imul(vector[i], weight);
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
  const shifts = [...Array(count).keys()];
  if (vector instanceof BigUint64Array) {
    return shifts.map((shift) => {
      let sum = 0n;
      for (let i = 0; i < vector.length; i++) sum += vector[i] * shifted[shift + i];
      return BigInt.asUintN(p, sum);
    });
  }
  const [left, right] = [new Uint32Array(vector), new Uint32Array(shifted)];
  return shifts.map((shift) => (innerProduct(left, right, shift) & lowBits(p)) >>> 0);
}

/** Modulo 2^32. @param {Uint32Array} left @param {Uint32Array} right @param {number} shift */
function innerProduct(left, right, shift) {
  let sum = 0;
  for (let i = 0; i < left.length; i++) sum = (sum + Math.imul(left[i], right[shift + i])) | 0;
  return sum;
}

/** Elements at exactly p bits each, lowest first. @param {Words} vector @param {number} p */
export function pack(vector, p) {
  if (p === 8 * wordBytes(p)) {
    return new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength);
  }
  const out = new Uint8Array(Math.ceil((vector.length * p) / 8));
  if (vector instanceof BigUint64Array) packWide(vector, p, out);
  else packNarrow(vector, p, out);
  return out;
}

/** @param {BigUint64Array} vector @param {number} p @param {Uint8Array} out */
function packWide(vector, p, out) {
  let waiting = 0n;
  let bits = 0;
  let at = 0;
  for (const element of vector) {
    waiting |= element << BigInt(bits);
    for (bits += p; bits >= 8; bits -= 8) {
      out[at++] = Number(waiting & 255n);
      waiting >>= 8n;
    }
  }
  if (bits) out[at] = Number(waiting);
}

/** Fewer than eight bits wait before each element. @param {Exclude<Words, BigUint64Array>} vector @param {number} p @param {Uint8Array} out */
function packNarrow(vector, p, out) {
  let waiting = 0;
  let bits = 0;
  let at = 0;
  for (let i = 0; i < vector.length; i++) {
    const element = vector[i];
    if (bits + p <= 32) {
      waiting |= element << bits;
      for (bits += p; bits >= 8; bits -= 8) {
        out[at++] = waiting;
        waiting >>>= 8;
      }
    } else {
      const word = waiting | (element << bits);
      out[at++] = word;
      out[at++] = word >>> 8;
      out[at++] = word >>> 16;
      out[at++] = word >>> 24;
      waiting = element >>> (32 - bits);
      bits += p - 32;
    }
  }
  if (bits) out[at] = waiting;
}
