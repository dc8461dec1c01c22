/**
 * Masks from ring learning with errors: values into coefficients, Gaussian draws, products with the
 * public polynomials, bit planes.
 * Implements protocols/one_message/README.md, "Masks and shares".
 * @module
 */
import { START, counterMode } from "./crypto.js";
import { NegacyclicRing } from "./negacyclic.js";
import { concat, integer } from "./wire.js";

/** @typedef {import("./one_message.js").Offer} Offer */
const LIMB_BITS = 28;
const PIECE = 1 << 16;
/**
 * Two limbs are multiplied at once in rings up to this width: a product's error is then below 160 |a| |s| / 2^53,
 * which is 0.4 for uniform a, so rounding is exact.
 */
const MOST_JOINED = { bits: 33, degree: 2048 };
/** Number of blocks whose public polynomials are expanded at once. */
const BATCH = 64;

// --- Values ----------------------------------------------------------------------------------

/** Position of a segment's values in coefficients. @param {Pick<Offer, "modulusBits" | "guardBits" | "capacity">} offer @param {import("./one_message.js").Segment} segment */
export function shapeOf(offer, { length, ringBits, bounds }) {
  if (!bounds) return { bits: ringBits, lowest: offer.modulusBits - ringBits, count: length, least: 0 };
  const [least, greatest] = bounds;
  const bits = (BigInt(offer.capacity) * BigInt(greatest - least)).toString(2).length;
  const fields = Math.floor((offer.modulusBits - offer.guardBits) / bits);
  return { bits, lowest: offer.guardBits, count: Math.ceil(length / fields), least };
}

/** Integers modulo 2^64, each in two words of 32 bits. */
export class Coefficients {
  /** @param {number} count */
  constructor(count) {
    this.low = new Uint32Array(count);
    this.high = new Uint32Array(count);
    this.length = count;
  }

  /** Add an integer, negative ones in two's complement, times a power of two. @param {number} at @param {number} value below 2^53 @param {number} shift */
  add(at, value, shift) {
    let low = value | 0;
    let high = Math.floor(value / 2 ** 32) | 0;
    if (shift >= 32) {
      high = low << (shift - 32);
      low = 0;
    } else if (shift) {
      high = (high << shift) | (low >>> (32 - shift));
      low <<= shift;
    }
    const sum = this.low[at] + (low >>> 0);
    this.low[at] = sum;
    this.high[at] += high + (sum >= 2 ** 32 ? 1 : 0);
  }

  /** 32 bits of some coefficients, starting at a lowest bit. @param {number} start @param {number} end @param {number} lowest */
  bits(start, end, lowest) {
    const { low, high } = this;
    const out = (lowest < 32 ? low : high).slice(start, end);
    const shift = lowest % 32;
    if (!shift) return out;
    for (let i = 0; i < out.length; i++) out[i] >>>= shift;
    if (lowest < 32) for (let i = 0; i < out.length; i++) out[i] |= high[start + i] << (32 - shift);
    return out;
  }
}

/**
 * Values in coefficients. The caller has clamped them to their bounds.
 * @param {Offer} offer @param {ArrayLike<number>[]} vectors
 */
export function placed(offer, vectors) {
  const shapes = offer.segments.map((segment) => shapeOf(offer, segment));
  const out = new Coefficients(shapes.reduce((sum, shape) => sum + shape.count, 0));
  let first = 0;
  shapes.forEach(({ bits, lowest, count, least }, i) => {
    const values = vectors[i];
    for (let at = 0, j = 0, shift = lowest; at < values.length; at++, j++) {
      if (j === count) {
        j = 0;
        shift += bits;
      }
      out.add(first + j, values[at] - least, shift);
    }
    first += count;
  });
  return out;
}

// --- Gaussian draws --------------------------------------------------------------------------

const WIDTH = 64;
/**
 * The distribution function of the discrete Gaussian of width 4.5, scaled to 2^144: the first 16
 * bits of a draw give its value, or that 128 more bits decide.
 */
const TABLE = (() => {
  // In 130 decimals: the ratio is exp(-2 / 81) by its series, and the mass of a value v is the ratio to the power v^2,
  // which each step multiplies by the ratio to the power 2 v + 1.
  const one = 10n ** 130n;
  let ratio = 0n;
  let term = one;
  for (let k = 1n; term; k++) {
    ratio += term;
    term = (-term * 2n) / (81n * k);
  }
  const masses = [one];
  let step = ratio;
  for (let value = 1; value <= WIDTH; value++) {
    masses.push((masses[value - 1] * step) / one);
    step = (((step * ratio) / one) * ratio) / one;
  }
  const side = masses.slice(1);
  const add = (/** @type {bigint[]} */ terms) => terms.reduce((sum, mass) => sum + mass, 0n);
  const whole = one + 2n * add(side);
  const weights = side.map((mass) => ((1n << 144n) * mass) / whole);
  const middle = (1n << 144n) - 2n * add(weights);
  const edges = [];
  let edge = 0n;
  for (const weight of [...weights.slice().reverse(), middle, ...weights].slice(0, -1)) {
    edges.push((edge += weight));
  }
  const values = new Int8Array(1 << 16);
  const isOpen = new Uint8Array(1 << 16);
  let passed = 0;
  for (let first = 0; first < 1 << 16; first++) {
    while (passed < edges.length && edges[passed] <= BigInt(first) << 128n) passed++;
    values[first] = passed - WIDTH;
    isOpen[first] = Number(passed < edges.length && edges[passed] >> 128n === BigInt(first));
  }
  return { values, isOpen, edges };
})();

/** The given number of draws. @param {Uint8Array} key which is overwritten @param {number} count */
export async function gaussian(key, count) {
  const drawn = new Uint16Array((await counterMode(key, START, 2 * count)).buffer);
  const out = new Int8Array(count);
  const open = [];
  for (let i = 0; i < count; i++) {
    out[i] = TABLE.values[drawn[i]];
    if (TABLE.isOpen[drawn[i]]) open.push(i);
  }
  const refining = concat([1], new Uint8Array(15));
  const more = new DataView((await counterMode(key, refining, 16 * open.length)).buffer);
  open.forEach((i, j) => {
    const low = (more.getBigUint64(16 * j, true) << 64n) | more.getBigUint64(16 * j + 8, true);
    const draw = (BigInt(drawn[i]) << 128n) | low;
    out[i] = TABLE.edges.filter((edge) => draw >= edge).length - WIDTH;
  });
  for (const secret of [key, drawn, new Uint8Array(more.buffer)]) secret.fill(0);
  return out;
}

// --- Masks -----------------------------------------------------------------------------------

/** Two limbs, the lower ones first, as numbers modulo 2^w around 0: of the upper one only w - bits bits count. @param {Int32Array} limbs @param {number} bits @param {number} w @param {Float64Array} out */
function join(limbs, bits, w, out) {
  const above = 32 - (w - bits);
  const weight = 2 ** bits;
  for (let i = 0; i < out.length; i++) out[i] = limbs[i] + ((limbs[out.length + i] << above) >> above) * weight;
  return out;
}

/**
 * Add a s + e to coefficients, in place.
 * @param {Offer} offer @param {Coefficients} words @param {Int8Array} secret @param {Int8Array} noise
 */
export async function addMask(offer, words, secret, noise) {
  const { degree: n, modulusBits } = offer;
  const limbs = Math.ceil(modulusBits / LIMB_BITS);
  const bits = Math.ceil(modulusBits / limbs);
  const isJoined = limbs === 2 && modulusBits <= MOST_JOINED.bits && n <= MOST_JOINED.degree;
  const ring = new NegacyclicRing(n);
  const transformed = ring.forward(secret);
  const [whole, block, product] = Array.from({ length: 3 }, () => new Float64Array(n));
  const blocks = Math.ceil(words.length / n);
  /** The stream of a batch of public polynomials. @param {number} batch */
  const streamOf = (batch) => {
    const count = Math.min(BATCH, blocks - batch);
    const counter = integer((batch * limbs * n) / 4, 16);
    return counterMode(offer.publicSeed, counter, Math.max(0, 4 * limbs * n * count));
  };
  let ahead = streamOf(0);
  for (let batch = 0; batch < blocks; batch += BATCH) {
    const stream = new Int32Array((await ahead).buffer);
    ahead = streamOf(batch + BATCH);
    for (let i = 0; i < stream.length; i++) stream[i] >>= 32 - bits;
    const width = isJoined ? 2 * n : n;
    for (let part = 0; part * width < stream.length; part++) {
      const own = stream.subarray(part * width, (part + 1) * width);
      ring.forward(isJoined ? join(own, bits, modulusBits, whole) : own, block);
      ring.product(block, transformed, product);
      const limb = isJoined ? 0 : part % limbs;
      const first = (batch + (isJoined ? part : Math.floor(part / limbs))) * n;
      const count = Math.min(n, words.length - first);
      for (let i = 0; i < count; i++) words.add(first + i, product[i], limb * bits);
    }
  }
  await ahead;
  for (let i = 0; i < words.length; i++) words.add(i, noise[i], 0);
  for (const trace of [transformed, product, ring.scratch]) trace.fill(0);
}

// --- Bit planes ------------------------------------------------------------------------------

/** Round dropped bits away; return the rest as planes, in pieces. @param {Offer} offer @param {Coefficients} words */
export function pieces(offer, words) {
  const { droppedBits, modulusBits } = offer;
  if (droppedBits) for (let i = 0; i < words.length; i++) words.add(i, 2 ** (droppedBits - 1), 0);
  const out = [];
  for (let start = 0; start < words.length; start += PIECE) {
    const planes = [];
    for (let lowest = droppedBits; lowest < modulusBits; lowest += 32) {
      const bits = words.bits(start, Math.min(words.length, start + PIECE), lowest);
      planes.push(...planesOf(bits, Math.min(32, modulusBits - lowest)));
    }
    out.push(concat(...planes));
  }
  return out;
}

/** The lowest bits of words, in planes of widths that are powers of two, the widest first. @param {Uint32Array} words @param {number} sent */
function planesOf(words, sent) {
  if (sent === 32) return [new Uint8Array(words.buffer)];
  const planes = sent & 16 ? [new Uint8Array(new Uint16Array(words).buffer)] : [];
  let shift = sent & 16;
  for (const width of [8, 4, 2, 1].filter((each) => sent & each)) {
    const plane = new Uint8Array(Math.ceil((words.length * width) / 8));
    const mask = 2 ** width - 1;
    for (let start = 0, up = 0; start < words.length; start += plane.length, up += width) {
      const count = Math.min(plane.length, words.length - start);
      for (let j = 0; j < count; j++) plane[j] |= ((words[start + j] >>> shift) & mask) << up;
    }
    planes.push(plane);
    shift += width;
  }
  return planes;
}
