/** Offers of one message that Python also refuses: none obtains an update. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { HOLDER_POLICY, readOffer, requireExact, requireHolderPolicy } from "../one_message.js";
import { Refused, unhex } from "../wire.js";

/** The clock of the recorded offers. */
const NOW = 1_800_000_000;
const folder = fileURLToPath(new URL("../../../tests/vectors/one_message/", import.meta.url));

/** A recorded offer. @param {string} name */
const recorded = (name) => unhex(JSON.parse(readFileSync(`${folder}${name}.json`, "utf8")).messages.offer);

/** @param {import("../one_message.js").Offer} offer @param {object} changes @param {object} policy */
function admit(offer, changes = {}, policy = {}) {
  const changed = { ...offer, ...changes };
  requireExact(changed);
  requireHolderPolicy(changed, { ...HOLDER_POLICY, ...policy }, NOW, offer.authority);
}

/** @param {() => unknown} act */
const refused = (act) => assert.throws(act, Refused);

for (const name of ["active"]) {
  test(`${name}: the recorded offer is accepted, and changed ones are refused`, async () => {
    const offer = await readOffer(recorded(name));
    admit(offer);
    const last = offer.segments[offer.segments.length - 1];
    const others = offer.segments.slice(0, -1);
    for (const changes of [
      { quorum: offer.isCertified ? offer.quorum - 2 : 3 },
      { quorum: 255 },
      { corruptedClients: 0 },
      { corruptedClients: offer.minimumCohort - 1 },
      { packing: 0 },
      { packing: 3, threshold: offer.holders.length },
      { modulusBits: 0 },
      { droppedBits: 200 },
      { guardBits: 0 },
      { guardBits: offer.modulusBits },
      { capacity: 10 ** 6 },
      { capacity: offer.minimumCohort - 1 },
      { corrupted: 0 },
      { minimumCohort: 2 },
      { segments: [last] },
      { segments: [...others, { ...last, length: last.length - 1 }] },
      { segments: [...others, { ...last, length: last.length + 1 }] },
      { segments: [...others, { ...last, length: 2 ** 52 }] },
      { segments: [...others, { ...last, ringBits: last.ringBits + 1 }] },
      { segments: [{ ...others[0], ringBits: 64, bounds: null }, ...others.slice(1), last] },
    ]) {
      const shown = JSON.stringify(changes, (_, value) => typeof value === "bigint" ? `${value}` : value);
      assert.throws(() => admit(offer, changes), Refused, shown);
    }
    refused(() => admit(offer, {}, { assumedCorrupted: offer.corruptedClients + 1 }));
    refused(() => admit(offer, {}, { assumedCorruptedHolders: offer.corrupted + 1 }));
    refused(() => admit(offer, { expiry: 0 }));
  });
}

/** An offer whose zeros match its numbers, as the client counts them. @param {any} numbers */
function exact(numbers) {
  const segments = [...numbers.segments, { length: 1, ringBits: 1, bounds: null }];
  const offer = { task: [1], droppedBits: 0, guardBits: 20, minimumCohort: 3, corruptedClients: 1, ...numbers, segments };
  for (let length = 1; length < 2 ** 13; length++) {
    segments[segments.length - 1].length = length;
    try {
      requireExact(offer);
      return length;
    } catch (error) {
      assert.equal(/** @type {any} */ (error).reason, "not_canonical");
    }
  }
  return null;
}

test("a sum has at most as many uploads as the shares' field distinguishes, whatever the policy is", () => {
  const numbers = { degree: 4096, modulusBits: 64, segments: [{ length: 9, ringBits: 7, bounds: null }] };
  assert.ok(exact({ ...numbers, capacity: 529_984 }));
  assert.equal(exact({ ...numbers, capacity: 529_985 }), null);
});

test("an offer has at most the values and coefficients that the guard bits are computed for", () => {
  const numbers = { degree: 4096, modulusBits: 64, capacity: 100 };
  const segment = { length: 2 ** 31 - 1, ringBits: 7, bounds: null };
  // The zero is the last one.
  assert.equal(exact({ ...numbers, segments: [segment] }), 1);
  assert.equal(exact({ ...numbers, segments: [{ ...segment, length: 2 ** 31 }] }), null);
  assert.equal(exact({ ...numbers, segments: [segment, { ...segment, length: 1 }] }), null);
  // A coefficient holds five values of one bit.
  const bit = { length: 2 ** 31, ringBits: 8, bounds: [0, 1] };
  assert.equal(exact({ ...numbers, segments: [bit] }), 1);
  assert.equal(exact({ ...numbers, segments: [{ ...bit, length: 2 ** 31 + 1 }] }), null);
});

test("a holder or its key has only one position", async () => {
  const bytes = recorded("semi_honest");
  // In the record: 7 of header after 4 of length and 7 of the offer's, then 58, and 40 for each holder.
  const holders = 7 + 4 + 7 + 8 + 2 + 8 + 8 + 32 + 4;
  const twice = bytes.slice();
  twice.copyWithin(holders + 40, holders, holders + 8);
  await assert.rejects(readOffer(twice), { message: /two positions/ });
  const keyed = bytes.slice();
  keyed[holders + 8] = 1;
  await assert.rejects(readOffer(keyed), { message: /two positions/ });
});

test("counts over their limits are refused before anything is read", async () => {
  const bytes = recorded("semi_honest");
  const record = new DataView(bytes.buffer).getUint32(7);
  const holders = 7 + 4 + 7 + 8 + 2 + 8 + 8 + 32;
  for (const place of [7 + 4 + record, holders]) {
    const changed = bytes.slice();
    changed.set([0, 0, 1, 1], place);
    await assert.rejects(readOffer(changed), { reason: "length_over_limit" });
  }
});

test("another authority's signatures are not verified", async () => {
  const { subtle } = globalThis.crypto;
  const { verify } = subtle;
  let verified = 0;
  subtle.verify = (...given) => {
    verified++;
    return verify.apply(subtle, given);
  };
  try {
    const bytes = recorded("active");
    const { authority } = await readOffer(bytes);
    await readOffer(bytes, authority);
    assert.ok(verified > 2);
    verified = 0;
    await assert.rejects(readOffer(bytes, new Uint8Array(32)), { reason: "below_floor" });
    assert.equal(verified, 0);
  } finally {
    subtle.verify = verify;
  }
});

test("holders' keys are distinct, canonical and not of low order", async () => {
  const bytes = recorded("semi_honest");
  const offer = await readOffer(bytes);
  const at = (/** @type {number} */ holder) => {
    const { sealingKey } = offer.holders[holder];
    return bytes.findIndex((_, i) => sealingKey.every((byte, k) => bytes[i + k] === byte));
  };
  for (const [key, reason] of [
    [offer.holders[1].sealingKey, "public_key_reused"],
    [new Uint8Array(32), "public_key_low_order"],
    [new Uint8Array(32).fill(255), "public_key_not_canonical"],
  ]) {
    const changed = bytes.slice();
    changed.set(/** @type {Uint8Array} */ (key), at(0));
    await assert.rejects(readOffer(changed), { reason });
  }
});
