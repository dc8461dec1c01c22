/** The uploads of one message, reproduced: every byte except HPKE's draws and their consequences. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { SigningKey, counterMode, random, sealTo } from "../crypto.js";
import { Coefficients, addMask, gaussian, pieces } from "../lattice.js";
import { readOffer, upload } from "../one_message.js";
import { Reader, bytes, hex, integer, list, sized, unhex } from "../wire.js";
import { granted } from "./grants.js";

const folder = fileURLToPath(new URL("../../../tests/vectors/one_message/", import.meta.url));

/** The parts of an upload that follow from recorded coins. @param {Uint8Array} message */
function pinned(message) {
  const reader = new Reader(message, 103);
  const head = [bytes(32), bytes(8), sized(104), bytes(72), bytes(32)].map((field) => field(reader));
  const [pieces, vector] = [list(2 ** 15, bytes(32))(reader), sized(2 ** 20)(reader)];
  return [...head, ...pieces, vector].map(hex);
}

for (const name of ["semi_honest", "active"]) {
  const vector = JSON.parse(readFileSync(`${folder}${name}.json`, "utf8"));
  for (const [role, inputs] of Object.entries(vector.inputs)) {
    test(`${name}, ${role}: the masked vector is the recorded one`, async () => {
      const { identities } = vector;
      const authority = identities.authority && (await SigningKey.of(unhex(identities.authority)));
      const offer = await readOffer(unhex(vector.messages.offer));
      const id = BigInt(role.split("/")[1]);
      let identity;
      if (authority) {
        const key = await SigningKey.of(unhex(identities[role]));
        const certificate = await granted(authority, integer(id, 8), key.public);
        identity = { id, key, certificate, authority: authority.public };
      }
      const made = await upload(offer, {
        id,
        identity,
        vectors: inputs.map((values) => values.map(Number)),
        coins: unhex(vector.coins[role]),
      });
      const recorded = unhex(vector.messages[role.replace("client", "upload")]);
      assert.equal(made.length, recorded.length);
      assert.deepEqual(pinned(made), pinned(recorded));
    });
  }
}

/** A recorded offer whose first segment has another ring and bounds. */
async function boundedOffer(ringBits, bounds) {
  const vector = JSON.parse(readFileSync(`${folder}semi_honest.json`, "utf8"));
  const offer = await readOffer(unhex(vector.messages.offer));
  return { ...offer, modulusBits: 64, guardBits: 0, capacity: 1, segments: [{ length: 4, ringBits, bounds }, offer.segments.at(-1)] };
}

for (const [ringBits, bounds] of [[8, [-100, 100]], [8, null], [32, [-(2 ** 31), 2 ** 31 - 1]], [32, null]]) {
  const [least, greatest] = bounds ?? [-(2 ** (ringBits - 1)), 2 ** ringBits - 1];
  test(`values beyond ${least}..${greatest} and non-integers are clamped and rounded`, async () => {
    const offer = await boundedOffer(ringBits, bounds);
    const made = async (values) => pinned(await upload(offer, { id: 1n, vectors: [values], coins: new Uint8Array(32).fill(7) }));
    const within = await made([0, least, greatest, 2]);
    assert.deepEqual(await made([NaN, -Infinity, Infinity, 2.5]), within);
    assert.deepEqual(await made([-0.5, -1e300, 2 ** 70, 2]), within);
    assert.ok((await made([0, least, greatest, 3])).join() !== within.join());
  });
}

/** Coefficient k of a product modulo X^n + 1, as the definition says. */
function coefficientOf(a, s, k) {
  let sum = 0n;
  for (let i = 0; i < a.length; i++) {
    const j = (k - i + a.length) % a.length;
    sum += (i <= k ? a[i] : -a[i]) * BigInt(s[j]);
  }
  return sum;
}

for (const [degree, modulusBits] of [[1024, 28], [1024, 29], [2048, 33], [2048, 34], [2048, 54], [4096, 33], [4096, 64]]) {
  test(`masks and their planes are exact for degree ${degree} modulo 2^${modulusBits}`, async () => {
    const [length, limbs] = [degree + 5, Math.ceil(modulusBits / 28)];
    const [bits, publicSeed] = [Math.ceil(modulusBits / limbs), random(32)];
    const offer = { degree, modulusBits, publicSeed, droppedBits: modulusBits % 2 ? 3 : 0 };
    const [secret, noise] = [await gaussian(random(32), degree), await gaussian(random(32), length)];
    const words = new Coefficients(length);
    await addMask(offer, words, secret, noise);
    const streamed = new Int32Array((await counterMode(publicSeed, new Uint8Array(16), 8 * limbs * degree)).buffer);
    const wordAt = (k) => (BigInt(words.high[k]) << 32n) | BigInt(words.low[k]);
    for (const k of [0, 1, degree >> 1, degree - 1, degree, degree + 4]) {
      const first = limbs * (k - (k % degree));
      const a = Array.from({ length: degree }, (_, i) => Array.from({ length: limbs }, (_, limb) =>
        BigInt(streamed[first + limb * degree + i] >> (32 - bits)) << BigInt(limb * bits)).reduce((x, y) => x + y));
      const exact = coefficientOf(a, secret, k % degree) + BigInt(noise[k]);
      assert.equal(BigInt.asUintN(modulusBits, wordAt(k)), BigInt.asUintN(modulusBits, exact));
    }
    const [piece] = pieces(offer, words);
    const sent = modulusBits - offer.droppedBits;
    let [start, lowest] = [0, 0];
    for (const width of [...Array(Math.floor(sent / 32)).fill(32), ...[16, 8, 4, 2, 1].filter((each) => sent & each)]) {
      const size = width < 8 ? Math.ceil((length * width) / 8) : (length * width) / 8;
      for (let k = 0; k < length; k++) {
        const own = Number(BigInt.asUintN(width, wordAt(k) >> BigInt(offer.droppedBits + lowest)));
        const bytes = Array.from({ length: width / 8 }, (_, i) => piece[start + (k * width) / 8 + i] * 2 ** (8 * i));
        const seen = width < 8
          ? (piece[start + (k % size)] >> (width * Math.floor(k / size))) & (2 ** width - 1)
          : bytes.reduce((x, y) => x + y);
        assert.equal(seen, own);
      }
      start += size;
      lowest += width;
    }
    assert.equal(start, piece.length);
  });
}

test("an upload leaves no coin and no key behind", async () => {
  const vector = JSON.parse(readFileSync(`${folder}semi_honest.json`, "utf8"));
  const offer = await readOffer(unhex(vector.messages.offer));
  const [[role, inputs]] = Object.entries(vector.inputs);
  const coins = unhex(vector.coins[role]);
  const keys = [];
  const { subtle } = globalThis.crypto;
  const { importKey } = subtle;
  subtle.importKey = (format, key, algorithm, ...rest) => {
    if (algorithm === "AES-CTR" || algorithm.name === "HMAC") keys.push(key);
    return importKey.call(subtle, format, key, algorithm, ...rest);
  };
  try {
    await upload(offer, { id: 1n, vectors: inputs.map((values) => values.map(Number)), coins });
  } finally {
    subtle.importKey = importKey;
  }
  const left = new Set(keys.filter((key) => key.some(Boolean)));
  assert.ok(keys.length > 20 && keys.includes(coins));
  // The seed of the public polynomials, and the challenge.
  assert.ok(left.delete(offer.publicSeed));
  assert.equal(left.size, 1);
});

test("shares are sealed as in RFC 9180, appendix A.1.1", async () => {
  const [scalar, receiver, info, text] = [
    "52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736",
    "3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d",
    "4f6465206f6e2061204772656369616e2055726e",
    "4265617574792069732074727574682c20747275746820626561757479",
  ].map(unhex);
  const { getRandomValues } = globalThis.crypto;
  globalThis.crypto.getRandomValues = (out) => {
    out.set(scalar);
    return out;
  };
  let sealed;
  try {
    sealed = await sealTo(receiver, info, text);
  } finally {
    globalThis.crypto.getRandomValues = getRandomValues;
  }
  // The tag differs: the appendix has associated data, and shares have none.
  assert.equal(sealed.length, 32 + text.length + 16);
  assert.equal(
    hex(sealed.slice(0, 32 + text.length)),
    "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431" +
      "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218",
  );
});
