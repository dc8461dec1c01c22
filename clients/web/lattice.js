/**
 * Masks from ring learning with errors: values into coefficients, Gaussian draws, products with the
 * public polynomials, bit planes. Coefficients of 28 bits and fewer stand in 32-bit words, others in
 * 64.
 * Implements protocols/one_message/README.md, "Masks and shares".
 * @module
 */
import { counterMode } from "./crypto.js";
import { NegacyclicRing } from "./negacyclic.js";
import { concat, integer } from "./wire.js";

/** @typedef {import("./one_message.js").Offer} Offer */
/** @typedef {Uint32Array | BigUint64Array} Coefficients */
const LIMB_BITS = 28;
const PIECE = 1 << 16;
/** Blocks whose public polynomials are expanded at once. */
const BATCH = 64;
const START = new Uint8Array(16);

// --- Values ----------------------------------------------------------------------------------

/** How the values of a segment stand in coefficients. @param {Pick<Offer, "modulusBits" | "guardBits" | "capacityWeight">} offer @param {import("./one_message.js").Segment} segment */
export function shapeOf(offer, { length, ringBits, bounds }) {
  if (!bounds) {
    return { bits: ringBits, lowest: offer.modulusBits - ringBits, count: length, least: 0n };
  }
  const [least, greatest] = bounds;
  const bits = (BigInt(offer.capacityWeight) * (greatest - least)).toString(2).length;
  const fields = Math.floor((offer.modulusBits - offer.guardBits) / bits);
  return { bits, lowest: offer.guardBits, count: Math.ceil(length / fields), least };
}

/**
 * Values, times a weight, in coefficients. They are within their bounds: the caller has clamped them.
 * @param {Offer} offer @param {ArrayLike<number>[]} vectors @param {number} weight
 * @returns {Coefficients}
 */
export function placed(offer, vectors, weight) {
  const shapes = offer.segments.map((segment) => shapeOf(offer, segment));
  const total = shapes.reduce((sum, shape) => sum + shape.count, 0);
  const isNarrow = offer.modulusBits <= LIMB_BITS;
  const out = isNarrow ? new Uint32Array(total) : new BigUint64Array(total);
  let first = 0;
  shapes.forEach(({ bits, lowest, count, least }, i) => {
    const values = vectors[i];
    for (let at = 0, j = 0, shift = lowest; at < values.length; at++, j++) {
      if (j === count) {
        j = 0;
        shift += bits;
      }
      if (out instanceof Uint32Array) {
        out[first + j] += Math.imul(values[at] - Number(least), weight) << shift;
      } else {
        out[first + j] += ((BigInt(values[at]) - least) * BigInt(weight)) << BigInt(shift);
      }
    }
    first += count;
  });
  return out;
}

// --- Gaussian draws --------------------------------------------------------------------------

const WIDTH = 64;
/**
 * The distribution function of the discrete Gaussian of width 4.5 out of 2^144: by the first 16
 * bits of a draw its value, and whether 128 more bits decide.
 */
const TABLE = (() => {
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

/** So many draws. @param {Uint8Array} key @param {number} count */
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
  return out;
}

// --- Masks -----------------------------------------------------------------------------------

/**
 * Add a s + e to coefficients, in place.
 * @param {Offer} offer @param {Coefficients} words @param {Int8Array} secret @param {Int8Array} noise
 */
export async function addMask(offer, words, secret, noise) {
  const { degree: n, modulusBits } = offer;
  const limbs = Math.ceil(modulusBits / LIMB_BITS);
  const bits = Math.ceil(modulusBits / limbs);
  const ring = new NegacyclicRing(n);
  const transformed = ring.forward(secret);
  const product = new Float64Array(n);
  const blocks = Math.ceil(words.length / n);
  for (let batch = 0; batch < blocks; batch += BATCH) {
    const count = Math.min(BATCH, blocks - batch);
    const counter = integer((batch * limbs * n) / 4, 16);
    const bytes = await counterMode(offer.publicSeed, counter, 4 * limbs * n * count);
    const stream = new Int32Array(bytes.buffer);
    for (let i = 0; i < stream.length; i++) stream[i] >>= 32 - bits;
    for (let part = 0; part < count * limbs; part++) {
      ring.product(ring.forward(stream.subarray(part * n, (part + 1) * n)), transformed, product);
      const first = (batch + Math.floor(part / limbs)) * n;
      addProduct(words, product, first, (part % limbs) * bits);
    }
  }
  if (words instanceof Uint32Array) for (let i = 0; i < words.length; i++) words[i] += noise[i];
  else for (let i = 0; i < words.length; i++) words[i] += BigInt(noise[i]);
}

/** @param {Coefficients} words @param {Float64Array} product @param {number} first @param {number} shift */
function addProduct(words, product, first, shift) {
  const count = Math.min(product.length, words.length - first);
  if (words instanceof Uint32Array) {
    for (let i = 0; i < count; i++) words[first + i] += product[i] % 2 ** 32;
  } else {
    for (let i = 0; i < count; i++) words[first + i] += BigInt(product[i]) << BigInt(shift);
  }
}

// --- Bit planes ------------------------------------------------------------------------------

/** Round dropped bits away; return the rest as planes, in pieces. @param {Offer} offer @param {Coefficients} words */
export function pieces(offer, words) {
  const sent = offer.modulusBits - offer.droppedBits;
  roundAway(words, offer.droppedBits, sent);
  const widths = [
    ...Array(Math.floor(sent / 32)).fill(32),
    ...[16, 8, 4, 2, 1].filter((width) => sent & width),
  ];
  const out = [];
  for (let start = 0; start < words.length; start += PIECE) {
    const piece = words.subarray(start, start + PIECE);
    let lowest = 0;
    const planes = widths.map((width) => {
      const plane = planeOf(piece, lowest, width);
      lowest += width;
      return plane;
    });
    out.push(concat(...planes));
  }
  return out;
}

/** @param {Coefficients} words @param {number} dropped @param {number} sent */
function roundAway(words, dropped, sent) {
  if (words instanceof Uint32Array) {
    const half = dropped ? 1 << (dropped - 1) : 0;
    const mask = 2 ** sent - 1;
    for (let i = 0; i < words.length; i++) words[i] = ((words[i] + half) >>> dropped) & mask;
  } else {
    const half = dropped ? 1n << BigInt(dropped - 1) : 0n;
    for (let i = 0; i < words.length; i++) {
      words[i] = BigInt.asUintN(sent, (words[i] + half) >> BigInt(dropped));
    }
  }
}

/** So many bits of each word, from the lowest on. @param {Coefficients} words @param {number} lowest @param {number} width */
function planeOf(words, lowest, width) {
  const low = new Uint32Array(words.length);
  if (words instanceof Uint32Array) {
    for (let i = 0; i < low.length; i++) low[i] = words[i] >>> lowest;
  } else {
    for (let i = 0; i < low.length; i++) low[i] = Number((words[i] >> BigInt(lowest)) & 0xffffffffn);
  }
  if (width === 32) return new Uint8Array(low.buffer);
  if (width === 16) return new Uint8Array(Uint16Array.from(low).buffer);
  if (width === 8) return Uint8Array.from(low);
  const plane = new Uint8Array(Math.ceil((low.length * width) / 8));
  const mask = 2 ** width - 1;
  for (let i = 0, j = 0, shift = 0; i < low.length; i++, j++) {
    if (j === plane.length) {
      j = 0;
      shift += width;
    }
    plane[j] |= (low[i] & mask) << shift;
  }
  return plane;
}
