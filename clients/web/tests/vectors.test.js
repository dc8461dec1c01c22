/** Replays the vectors of pairwise masks: every byte, and every refusal. */
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { SEGMENT, SigningKey, streamKey } from "../crypto.js";
import { PairwiseClient } from "../pairwise.js";
import { addMasks, arrayOf } from "../ring.js";
import { concat, hex, integer, unhex } from "../wire.js";
import { granted } from "./grants.js";

const folder = fileURLToPath(new URL("../../../tests/vectors/pairwise_mask/", import.meta.url));
const vectors = new Map(
  readdirSync(folder).map((file) => [
    file.replace(".json", ""), JSON.parse(readFileSync(folder + file, "utf8")),
  ]),
);
const CLASSIC = "x25519-aes128";

test("parts of a mask's stream equal those of its segments", async () => {
  const key = new Uint8Array(16).fill(5);
  const { subtle } = globalThis.crypto;
  const whole = async (segment, count) => {
    const counter = concat(integer(segment, 12), integer(2, 4));
    const given = { name: "AES-CTR", counter, length: 32 };
    return new Uint32Array(await subtle.encrypt(given, await streamKey(key), new Uint8Array(count)));
  };
  const total = new Uint32Array(SEGMENT / 4 + 40_000);
  assert.equal(await addMasks(total, 32, [{ sign: -1, key: await streamKey(key) }], 7), 9);
  const streams = [await whole(7, SEGMENT), await whole(8, 160_000)];
  const at = (i) => streams[Math.floor((4 * i) / SEGMENT)][i % (SEGMENT / 4)];
  assert.ok(total.every((word, i) => word === -at(i) >>> 0));
});

/** The clients of a session, each with its recorded coins. */
async function clientsOf(vector) {
  const { identities, policy, parameters } = vector;
  const authority = identities.authority && (await SigningKey.of(unhex(identities.authority)));
  const clients = new Map();
  for (const [role, coins] of Object.entries(vector.coins)) {
    if (role === "server") continue;
    const id = BigInt(role.split("/")[1]);
    const bytes = unhex(coins);
    let at = 0;
    let identity;
    if (authority) {
      const key = await SigningKey.of(unhex(identities[role]));
      const certificate = await granted(authority, integer(id, 8), key.public);
      identity = { id, key, certificate, authority: authority.public };
    }
    clients.set(role, new PairwiseClient({
      now: () => 1_800_000_060,
      id,
      identity,
      input: () => vector.inputs[role].map((values, i) => {
        const [bits] = parameters.layout[i];
        return arrayOf(bits).from(values.map(bits > 32 ? BigInt : Number));
      }),
      coins: (count) => bytes.slice(at, (at += count)),
      policy: {
        minimumCohort: policy.minimum_cohort,
        assumedCorrupted: policy.assumed_corrupted,
        privacyBits: policy.privacy_bits,
        maximumPopulation: policy.maximum_population,
        minimumModulusBits: policy.minimum_modulus_bits,
        maximumLength: policy.maximum_length,
      },
      about: { layout: parameters.layout, capacity: Number(policy.capacity) },
    }));
  }
  return clients;
}

for (const [name, vector] of vectors) {
  if (vector.parameters?.suite !== CLASSIC || !vector.messages) continue;
  test(`${name}: every message is the recorded one`, async () => {
    const clients = await clientsOf(vector);
    for (const step of vector.operations) {
      if (step.role === "server") continue;
      const message = unhex(vector.messages[step.message]);
      const said = hex(await clients.get(step.role).answer(message));
      for (const sent of step.sends ?? []) assert.equal(said, vector.messages[sent], sent);
    }
  });
}

for (const [name, vector] of vectors) {
  const base = vectors.get(vector.base);
  const last = vector.operations?.at(-1);
  if (base?.parameters?.suite !== CLASSIC || !last?.role?.startsWith("client/")) continue;
  test(`${name}: ${last.expect}`, async () => {
    const clients = await clientsOf(base);
    const steps = vector.operations.flatMap((step) =>
      step.base ? base.operations.slice(...step.base) : [step],
    );
    for (const step of steps) {
      if (step.role === "server") continue;
      const message = unhex(base.messages[step.message] ?? step.message);
      const answered = clients.get(step.role).answer(message);
      if (step !== last || last.expect === "ok") await answered;
      else await assert.rejects(answered, { reason: last.expect });
    }
  });
}
