/**
 * QR codes of short texts: bytes, level L, versions 1 to 5, whose data are one block (ISO/IEC 18004).
 * @module
 */

/** Bytes of data and of error correction in each version. @type {[number, number][]} */
const VERSIONS = [[19, 7], [34, 10], [55, 15], [80, 20], [108, 26]];
/** Level L with the mask of a chessboard, in its code with 15 bits. */
const FORMAT = 0b111011111000100;
const QUIET = 4;

/** Powers of 2 in the field of 256 elements, twice over, and their logarithms. */
const POWERS = new Uint8Array(510);
const LOGARITHMS = new Uint8Array(256);
for (let i = 0, value = 1; i < 255; i++) {
  POWERS[i] = POWERS[i + 255] = value;
  LOGARITHMS[value] = i;
  value = (value << 1) ^ (value & 128 ? 0x11d : 0);
}

/** @param {number} a @param {number} b */
const times = (a, b) => (a && b ? POWERS[LOGARITHMS[a] + LOGARITHMS[b]] : 0);

/** The remainder of Reed and Solomon. @param {number[]} data @param {number} count of its bytes */
function remainderOf(data, count) {
  let generator = [1];
  for (let i = 0; i < count; i++) {
    const shifted = [...generator, 0];
    generator = shifted.map((value, at) => value ^ times(generator[at - 1] ?? 0, POWERS[i]));
  }
  const rest = [...data, ...Array(count).fill(0)];
  for (let at = 0; at < data.length; at++) {
    const factor = rest[at];
    generator.forEach((value, i) => (rest[at + i] ^= times(value, factor)));
  }
  return rest.slice(data.length);
}

/** Data and error correction as bits. @param {Uint8Array} bytes @param {number} room @param {number} checks */
function bitsOf(bytes, room, checks) {
  const digits = (/** @type {number} */ value, /** @type {number} */ size) => value.toString(2).padStart(size, "0");
  let text = `0100${digits(bytes.length, 8)}${Array.from(bytes, (byte) => digits(byte, 8)).join("")}0000`;
  for (let pad = 0xec; text.length < 8 * room; pad ^= 0xec ^ 0x11) text += digits(pad, 8);
  const data = /** @type {string[]} */ (text.match(/.{8}/g)).map((byte) => parseInt(byte, 2));
  return [...data, ...remainderOf(data, checks)].map((byte) => digits(byte, 8)).join("");
}

/**
 * The rows of a code, true where a module is dark; null for a text that is too long.
 * @param {string} text @returns {boolean[][] | null}
 */
export function codeOf(text) {
  const bytes = new TextEncoder().encode(text);
  const version = VERSIONS.findIndex(([room]) => bytes.length + 2 <= room);
  if (version < 0) return null;
  const size = 21 + 4 * version;
  /** @type {(boolean | undefined)[][]} */
  const rows = Array.from({ length: size }, () => Array(size));
  const square = (/** @type {number} */ x, /** @type {number} */ y, /** @type {number[]} */ dark) => {
    for (let i = -4; i <= 4; i++) {
      for (let j = -4; j <= 4; j++) {
        const ring = Math.max(Math.abs(i), Math.abs(j));
        const isInside = y + i >= 0 && y + i < size && x + j >= 0 && x + j < size;
        if (isInside && ring <= dark.length - 1) rows[y + i][x + j] = Boolean(dark[ring]);
      }
    }
  };
  for (const [x, y] of [[3, 3], [size - 4, 3], [3, size - 4]]) square(x, y, [1, 1, 0, 1, 0]);
  if (version) square(size - 7, size - 7, [1, 0, 1]);
  for (let i = 8; i < size - 8; i++) rows[6][i] = rows[i][6] = i % 2 === 0;
  for (let i = 0; i < 15; i++) {
    // Twice: around the first corner, and along the edges of the other two.
    const isDark = ((FORMAT >> i) & 1) === 1;
    const near = i < 6 ? i : i < 8 ? i + 1 : i === 8 ? 7 : 14 - i;
    if (i < 8) rows[near][8] = rows[8][size - 1 - i] = isDark;
    else rows[8][near] = rows[size - 15 + i][8] = isDark;
  }
  rows[size - 8][8] = true;
  const bits = bitsOf(bytes, ...VERSIONS[version]);
  let next = 0;
  let isUp = true;
  for (let right = size - 1; right > 0; right -= 2, isUp = !isUp) {
    if (right === 6) right--;
    for (let step = 0; step < size; step++) {
      const y = isUp ? size - 1 - step : step;
      for (const x of [right, right - 1]) {
        if (rows[y][x] === undefined) rows[y][x] = (bits[next++] === "1") !== ((x + y) % 2 === 0);
      }
    }
  }
  return /** @type {boolean[][]} */ (rows);
}

/** Show a text as a code, or nothing for one that is too long. @param {HTMLCanvasElement} canvas @param {string} text */
export function showCode(canvas, text) {
  const rows = codeOf(text);
  canvas.hidden = !rows;
  if (!rows) return;
  canvas.width = canvas.height = rows.length + 2 * QUIET;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#000";
  rows.forEach((row, y) => row.forEach((isDark, x) => isDark && context.fillRect(x + QUIET, y + QUIET, 1, 1)));
}
