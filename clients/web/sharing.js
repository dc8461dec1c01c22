/**
 * Sharing of a mask's secret over the integers modulo 65521, and the polynomial that proves it.
 * Implements protocols/one_message/README.md, "Masks and shares".
 * @module
 */
import { START, counterMode, expand } from "./crypto.js";
import { bind } from "./wire.js";

export const PRIME = 65521;
/** Polynomials that a challenge combines, in addition to those of the secret. */
export const CHECKS = 8;

/** Uniform field elements from a seed. @param {Uint8Array} seed @param {string} label @param {Uint8Array} context @param {number} count */
export async function elements(seed, label, context, count) {
  const key = await expand(seed, bind(label, context), 32);
  const drawn = 2 * (count + 64 + (count >> 10));
  const words = new Uint16Array((await counterMode(key, START, drawn)).buffer);
  const found = words.filter((word) => word < PRIME);
  for (const secret of [key, words]) secret.fill(0);
  return found.subarray(0, count);
}

/** @param {number} base @param {number} exponent */
function power(base, exponent) {
  let result = 1;
  for (let square = base % PRIME, rest = exponent; rest; rest >>= 1) {
    if (rest & 1) result = (result * square) % PRIME;
    square = (square * square) % PRIME;
  }
  return result;
}

/** @param {number} value */
const modulo = (value) => ((value % PRIME) + PRIME) % PRIME;

/** The matrix from values at points to coefficients, constant terms first. @param {number[]} points */
export function interpolation(points) {
  const matrix = points.map(() => new Array(points.length).fill(0));
  points.forEach((point, column) => {
    let basis = [1];
    let scale = 1;
    for (const other of points) {
      if (other === point) continue;
      const shifted = [0, ...basis];
      basis = shifted.map((value, i) => modulo(value - (basis[i] ?? 0) * other));
      scale = (scale * modulo(point - other)) % PRIME;
    }
    const inverse = power(scale, PRIME - 2);
    basis.forEach((value, row) => (matrix[row][column] = (value * inverse) % PRIME));
  });
  return matrix;
}

/** The matrix from coefficients to values at points. @param {number[]} points @param {number} degree */
export const evaluation = (points, degree) =>
  points.map((point) => Array.from({ length: degree }, (_, exponent) => power(point, exponent)));

/** A matrix times rows. @param {ArrayLike<number>[]} matrix @param {ArrayLike<number>[]} rows */
export function multiply(matrix, rows) {
  return matrix.map((factors) => {
    const out = new Uint16Array(rows[0].length);
    for (let i = 0; i < out.length; i++) {
      let sum = 0;
      for (let k = 0; k < factors.length; k++) sum += factors[k] * rows[k][i];
      out[i] = sum % PRIME;
    }
    return out;
  });
}
