/** The vectors of pairwise masks, replayed by this client: every byte, and every refusal. */
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { SigningKey } from "../crypto.js";
import { PairwiseClient } from "../pairwise.js";
import { arrayOf } from "../ring.js";
import { hex, integer, unhex } from "../wire.js";

const folder = fileURLToPath(new URL("../../../tests/vectors/pairwise_mask/", import.meta.url));
const vectors = new Map(
  readdirSync(folder).map((file) => [
    file.replace(".json", ""), JSON.parse(readFileSync(folder + file, "utf8")),
  ]),
);
const CLASSIC = "x25519-aes128";

/** The clients of a session, each with the coins that were recorded. */
async function clientsOf(vector) {
  const { identities, floors, parameters } = vector;
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
      const certificate = await authority.sign(
        "certificate", authority.public, integer(id, 8), key.public,
      );
      identity = { id, key, certificate, authority: authority.public };
    }
    clients.set(role, new PairwiseClient({
      id,
      identity,
      weight: Number(vector.weights[role]),
      input: () => vector.inputs[role].map((values, i) => {
        const [bits] = parameters.layout[i];
        return arrayOf(bits).from(values.map(bits > 32 ? BigInt : Number));
      }),
      coins: (count) => bytes.slice(at, (at += count)),
      floors: {
        minimumCohort: floors.minimum_cohort,
        assumedCorrupted: floors.assumed_corrupted,
        privacyBits: floors.privacy_bits,
        maximumPopulation: floors.maximum_population,
        minimumModulusBits: floors.minimum_modulus_bits,
        maximumLength: floors.maximum_length,
      },
      about: { layout: parameters.layout, capacity: Number(floors.capacity) },
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
