/** The uploads of one message, made again: every byte but those that HPKE draws and what follows from them. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { SigningKey } from "../crypto.js";
import { readOffer, upload } from "../one_message.js";
import { Reader, hex, integer, unhex } from "../wire.js";

const folder = fileURLToPath(new URL("../../../tests/vectors/one_message/", import.meta.url));

/** The parts of an upload that follow from recorded coins. @param {Uint8Array} message */
function pinned(message) {
  const reader = new Reader(message, 103);
  const head = [reader.take(32), reader.take(8), reader.variable(96), reader.take(88), reader.take(32)];
  const pieces = reader.list(reader.number(4), () => reader.take(32));
  return [...head, ...pieces, reader.variable(2 ** 20)].map(hex);
}

for (const name of ["semi_honest", "certified", "one_answer"]) {
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
        const certificate = await authority.sign(
          "certificate", authority.public, integer(id, 8), key.public,
        );
        identity = { id, key, certificate, authority: authority.public };
      }
      const made = await upload(offer, {
        id,
        identity,
        vectors: inputs.map((values) => values.map(Number)),
        weight: Number(vector.weights[role]),
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
  return { ...offer, modulusBits: 64, guardBits: 0, capacityWeight: 1, segments: [{ length: 4, ringBits, bounds }, offer.segments.at(-1)] };
}

for (const [ringBits, bounds] of [[8, [-100n, 100n]], [8, null], [64, [-(2n ** 63n), 2n ** 63n - 1n]], [64, null]]) {
  const [least, greatest] = bounds ?? [-(2n ** BigInt(ringBits - 1)), 2n ** BigInt(ringBits) - 1n];
  test(`values beyond ${least}..${greatest} and those that are no integers count as ones within`, async () => {
    const offer = await boundedOffer(ringBits, bounds);
    const made = async (values) => pinned(await upload(offer, { id: 1n, vectors: [values], coins: new Uint8Array(32).fill(7) }));
    const integers = (...values) => values.map(ringBits > 32 ? BigInt : Number);
    const within = await made(integers(0, least, greatest, 2));
    assert.deepEqual(await made([NaN, -Infinity, Infinity, 2.5]), within);
    assert.deepEqual(await made([-0.5, -1e300, 2 ** 70, 2]), within);
    assert.notDeepEqual(await made(integers(0, least, greatest, 3)), within);
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

test("a weight out of range counts as the bound", async () => {
  const vector = JSON.parse(readFileSync(`${folder}semi_honest.json`, "utf8"));
  const offer = await readOffer(unhex(vector.messages.offer));
  const [role, inputs] = Object.entries(vector.inputs)[0];
  const vectors = inputs.map((values) => values.map(Number));
  const made = async (weight) =>
    pinned(await upload(offer, { id: BigInt(role.split("/")[1]), vectors, weight, coins: unhex(vector.coins[role]) }));
  for (const low of [0, -3, NaN]) assert.deepEqual(await made(low), await made(1));
  assert.deepEqual(await made(2 ** 45), await made(offer.maximumWeight));
});
