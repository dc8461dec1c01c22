/**
 * Secret sharing modulo 2^256 - 189, in the basis of binomial coefficients. BigInt is not constant
 * time; LIMITATIONS explains the consequences.
 * @module
 */
import { integer, toBigInt } from "./wire.js";

export const PRIME = (1n << 256n) - 189n;

/** A uniform element of the field, as bytes. @param {import("./crypto.js").Coins} coins */
export function fieldElement(coins) {
  for (;;) {
    const bytes = coins(32);
    if (toBigInt(bytes) < PRIME) return bytes;
    bytes.fill(0);
  }
}

/**
 * Shares of a secret at the points 1, 2 and so on. The polynomial's differences are added up, as
 * in Pascal's triangle.
 * @param {Uint8Array} secret @param {number} threshold @param {number} holders
 * @param {import("./crypto.js").Coins} coins
 */
export function deal(secret, threshold, holders, coins) {
  const differences = [toBigInt(secret)];
  for (let k = 1; k < threshold; k++) {
    const coefficient = fieldElement(coins);
    differences.push(toBigInt(coefficient));
    coefficient.fill(0);
  }
  const shares = [];
  for (let point = 1; point <= holders; point++) {
    for (let k = 0; k + 1 < threshold; k++) {
      differences[k] += differences[k + 1];
      if (differences[k] >= PRIME) differences[k] -= PRIME;
    }
    shares.push(integer(differences[0], 32));
  }
  differences.fill(0n);
  return shares;
}
