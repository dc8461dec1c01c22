/** The interop suite, run by this client: every case, clients' messages in every session, every refusal of a client. */
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import {
  SEGMENT, SigningKey, agree, derive, expand, isCanonical, isLowOrder, isStrong, keyPair, sha256, stream, streamKey, requireStanding,
} from "../crypto.js";
import { applicationDigest, encode, layoutVersion, planOf, readTerms } from "../encoding.js";
import { authorizationOf, identityOf, readDescription } from "../http.js";
import { gaussian } from "../lattice.js";
import { HOLDER_POLICY, payloadDigest, readOffer, requireHolderPolicy, requireReceipts, upload } from "../one_message.js";
import { PairwiseClient, committeeOf, graphOf } from "../pairwise.js";
import { addMasks, arrayOf, checkWords, pack } from "../ring.js";
import { deal } from "../shamir.js";
import {
  FORM, Refused, bind, bitSet, commit, concat, equal, hash, header, hex, idsOf, integer, kindOf,
  requireSubject, rootFrom, treeRoot, unhex, utf8,
} from "../wire.js";
import { granted } from "./grants.js";

const folder = fileURLToPath(new URL(`../../../interop/${FORM}/`, import.meta.url));
const read = (name) => JSON.parse(readFileSync(`${folder}${name}.json`, "utf8"));
const files = (directory) =>
  readdirSync(folder + directory).sort().map((file) => `${directory}/${file.replace(".json", "")}`);
const id8 = (digits) => integer(BigInt(digits), 8);
const vector = (bits, digits) => arrayOf(bits).from(digits, bits > 32 ? BigInt : Number);
const digitsOf = (values) => Array.from(values, String);

// --- Small cases -----------------------------------------------------------------------------

const PLAYS = {
  "labels/labels": ({ label, text }) => assert.deepEqual(bind(label), utf8(text)),
  "bind/bound": async ({ label, parts, bound, digest }) => {
    assert.equal(hex(bind(label, ...parts.map(unhex))), bound);
    assert.equal(hex(await hash(label, ...parts.map(unhex))), digest);
  },
  "bind/commitments": async ({ label, parts, secret, digest }) =>
    assert.equal(hex(await commit(label, parts.map(unhex), unhex(secret))), digest),
  "bind/headers": ({ kind, header: bytes }) => {
    assert.equal(hex(header(kind)), bytes);
    assert.equal(kindOf(unhex(bytes)), kind);
  },
  "bind/id_lists": ({ ids, bytes }) => assert.deepEqual(digitsOf(idsOf(unhex(bytes), ids.length)), ids),
  "bind/sets": ({ population, positions, bytes }) => assert.equal(hex(bitSet(positions, population)), bytes),
  "bind/trees": async ({ leaves, root, known, nodes }) => {
    assert.equal(hex(await treeRoot(leaves.map(unhex))), root);
    const held = new Map(known.map((at) => [at, unhex(leaves[at])]));
    assert.equal(hex(await rootFrom(leaves.length, held, nodes.map(unhex))), root);
  },
  "keys/pairs": async ({ role, root, t0, public: key }) =>
    assert.equal(hex((await derivedPair(root, role, t0)).public), key),
  "keys/agreements": async ({ t0, context, ids, roots, pairwise_seed, mask_key, there, back }) => {
    const both = (role) => Promise.all(roots.map((root) => derivedPair(root, role, t0)));
    const [masks, channels] = [await both("mask"), await both("channel")];
    const found = await edge(masks, ids.map(id8), unhex(context));
    assert.deepEqual([hex(found.seed), hex(found.key)], [pairwise_seed, mask_key]);
    const shared = await agree(channels[1].own, channels[0].public);
    for (const [from, key] of [there, back].entries()) {
      const ends = [from, 1 - from];
      const parts = [...ends.map((at) => id8(ids[at])), ...ends.map((at) => channels[at].public)];
      assert.equal(hex(await derive(shared, unhex(context), bind("channel-aead-key", ...parts))), key);
    }
  },
  "keys/x25519": ({ key, verdict }) => {
    const low = isLowOrder(unhex(key)) ? "public_key_low_order" : "ok";
    assert.equal(isCanonical(unhex(key)) ? low : "public_key_not_canonical", verdict);
  },
  "keys/ed25519": ({ key, is_strong }) => assert.equal(isStrong(unhex(key)), is_strong),
  "keys/certificates": async ({ id, authority_seed, seed, authority, public: own, certificate, key_file }) => {
    const [signer, key] = [await SigningKey.of(unhex(authority_seed)), await SigningKey.of(unhex(seed))];
    assert.deepEqual([hex(signer.public), hex(key.public)], [authority, own]);
    assert.equal(hex(await granted(signer, id8(id), key.public, unhex(certificate).slice(0, 8))), certificate);
    const identity = await identityOf(key_file);
    assert.deepEqual([String(identity.id), hex(identity.certificate)], [id, certificate]);
  },
  "masks/streams": async ({ key, segment, stream: bytes }) => {
    const made = await stream(await streamKey(unhex(key)), segment * SEGMENT, bytes.length / 2);
    assert.equal(hex(new Uint8Array(made)), bytes);
  },
  "masks/packing": ({ bits, values, packed }) => assert.equal(hex(pack(vector(bits, values), bits)), packed),
  "masks/addition": async ({ bits, values, first_segment, masks, masked }) => {
    const total = vector(bits, values);
    const keys = masks.map(async ({ sign, key }) => ({ sign, key: await streamKey(unhex(key)) }));
    await addMasks(total, bits, await Promise.all(keys), first_segment);
    assert.deepEqual(digitsOf(total), masked);
  },
  "check_words/words": async ({ bits, values, key, words }) =>
    assert.deepEqual(digitsOf(await checkWords(vector(bits, values), bits, words.length, unhex(key))), words),
  "sharing/shares": ({ secret, threshold, coins, shares }) =>
    assert.deepEqual(deal(unhex(secret), threshold, shares.length, recorded(coins)).map(hex), shares),
  "graph/graphs": ({ seed, clients, degree, committee_size, neighbours, committee }) => {
    const near = graphOf({ isSparse: degree > 0, degree }, unhex(seed), clients);
    assert.deepEqual(neighbours.map((_, at) => near(at)), neighbours);
    const members = committeeOf({ committee: committee_size }, unhex(seed), clients);
    assert.deepEqual([...members].sort((a, b) => a - b), committee);
  },
  "encoding/plans": async ({ terms, ring_bits, scale, capacity, layout_version }) => {
    const plan = planOf(readTerms(terms));
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setFloat32(0, plan.scale);
    const made = [plan.ringBits, hex(bytes), String(plan.capacity), hex(await layoutVersion(readTerms(terms)))];
    assert.deepEqual(made, [ring_bits, scale, capacity, layout_version]);
  },
  "encoding/codes": ({ terms, values, elements }) => {
    const named = { nan: NaN, inf: Infinity, "-inf": -Infinity };
    for (let again = 0; again < 8; again++) {
      const { codes } = encode(Float32Array.from(values, (each) => named[each] ?? each), readTerms(terms));
      codes.forEach((code, at) => assert(elements[at].includes(String(code)), `value ${at} is ${code}`));
    }
  },
  "encoding/layouts": async ({ segments, version, bytes, digest }) => {
    const rows = segments.map(([bits, length]) => concat([1], integer(bits, 4), integer(length, 8)));
    assert.equal(hex(concat(header(1), integer(segments.length, 4), ...rows, unhex(version))), bytes);
    assert.equal(hex(await hash("layout", unhex(bytes))), digest);
  },
  "terms/digests": async ({ terms, digest, application_digest }) => {
    assert.equal(hex(await hash("http-terms", utf8(terms))), digest);
    assert.equal(hex(await applicationDigest(terms, readTerms(terms))), application_digest);
  },
  "http/proofs": async ({ description, id, seed, authorization }) => {
    const identity = { id: BigInt(id), key: await SigningKey.of(unhex(seed)) };
    assert.equal(await authorizationOf(utf8(description), identity), authorization);
  },
  "http/descriptions": ({ description, round, terms }) => {
    const made = readDescription(description);
    assert.deepEqual([String(made.round), made.text], [round, terms]);
  },
};

const derivedPair = async (root, role, t0) =>
  keyPair(await expand(unhex(root), bind(`${role}-x25519-key`, unhex(t0)), 32));

/** The mask of two clients with these key pairs. */
async function edge([mine, theirs], ids, context) {
  const [low, high] = hex(ids[0]) < hex(ids[1]) ? [0, 1] : [1, 0];
  const keys = [mine, theirs];
  const info = bind("pairwise-seed", ids[low], ids[high], keys[low].public, keys[high].public);
  const seed = await derive(await agree(mine.own, theirs.public), context, info);
  return { seed, key: await expand(seed, bind("pairwise-mask-key", context, ids[low], ids[high]), 16) };
}

/** Recorded coins. */
function recorded(coins) {
  const bytes = unhex(coins);
  let at = 0;
  return (count) => bytes.slice(at, (at += count));
}

const SESSIONS = ["pairwise", "one_message", "refusals"];
for (const directory of readdirSync(folder).filter((name) => !name.includes(".") && !SESSIONS.includes(name))) {
  for (const name of files(directory)) {
    test(`${name}: ${read(name).about}`, async () => {
      for (const given of read(name).cases) await PLAYS[name](given);
    });
  }
}

// --- Sessions --------------------------------------------------------------------------------

const sessions = new Map(
  [...files("pairwise"), ...files("one_message")].map((name) => {
    const session = read(name);
    const whole = Object.entries(session.messages).map(([said, parts]) => [said, unhex(parts.map(([, part]) => part).join(""))]);
    return [name, { ...session, messages: new Map(whole) }];
  }),
);

/** A client's identity, if the session has an authority. */
async function identityIn({ identities }, role) {
  if (!identities.authority) return undefined;
  const [authority, key] = [await SigningKey.of(unhex(identities.authority)), await SigningKey.of(unhex(identities[role]))];
  const id = BigInt(role.split("/")[1]);
  const certificate = await granted(authority, integer(id, 8), key.public);
  return { id, key, certificate, authority: authority.public };
}

async function pairwiseClient(session, role) {
  const { policy, parameters } = session;
  return new PairwiseClient({
    now: () => 1_800_000_060,
    id: BigInt(role.split("/")[1]),
    identity: await identityIn(session, role),
    input: () => session.inputs[role].map((values, i) => vector(parameters.layout[i][0], values)),
    coins: recorded(session.coins[role]),
    policy: {
      minimumCohort: policy.minimum_cohort,
      assumedCorrupted: policy.assumed_corrupted,
      privacyBits: policy.privacy_bits,
      maximumPopulation: policy.maximum_population,
      minimumModulusBits: policy.minimum_modulus_bits,
      maximumLength: policy.maximum_length,
    },
    about: {
      layout: parameters.layout, capacity: Number(policy.capacity), task: unhex(parameters.task),
      round: BigInt(parameters.round_number), model: unhex(parameters.model_digest),
      application: unhex(parameters.application_digest),
    },
  });
}

for (const name of files("pairwise")) {
  const session = sessions.get(name);
  const { computed } = session;
  test(`${name}: every message and computation of a client`, async () => {
    for (const role of Object.keys(session.inputs)) {
      const client = await pairwiseClient(session, role);
      for (const step of session.steps.filter((each) => each.role === role)) {
        const said = await client.answer(session.messages.get(step.message));
        assert.deepEqual(said, session.messages.get(step.sends[0]), step.sends[0]);
        if (step.round !== 1) continue;
        const { attempt, seed, context, ids, position, near } = client;
        assert.deepEqual([attempt, seed, context].map(hex), [computed.t0, computed.graph_seed, computed.context]);
        assert.deepEqual(digitsOf(ids), computed.advertisers);
        assert.deepEqual(near, computed.neighbours[position]);
        for (const { clients, seed: due, key } of computed.pairwise_masks) {
          if (!clients.includes(String(client.id))) continue;
          const other = clients.find((each) => each !== String(client.id));
          const root = session.coins[`client/${other}`].slice(64, 128);
          const pairs = [client.mask, await derivedPair(root, "mask", computed.t0)];
          const found = await edge(pairs, [client.me, id8(other)], context);
          assert.deepEqual([hex(found.seed), hex(found.key)], [due, key]);
        }
        const own = await expand(client.selfMaskSeed, bind("self-mask-key", context, client.me), 16);
        assert.equal(hex(own), computed.self_mask_keys[String(client.id)]);
      }
    }
  });
}

/** Parts of an upload that HPKE draws, or that follow from them. */
const FRESH = /^(polynomial|sealed [0-9]+|signature)$/;

for (const name of files("one_message")) {
  const session = sessions.get(name);
  const parts = read(name).messages;
  test(`${name}: every upload and its client's draws`, async () => {
    const offer = await readOffer(session.messages.get("offer"));
    assert.deepEqual([offer.t0, offer.publicSeed].map(hex), [session.computed.t0, session.computed.public_seed]);
    for (const [role, values] of Object.entries(session.inputs)) {
      const { draws, secret, error, payload_digest } = session.computed.clients[role];
      const vectors = values.map((row) => row.map(Number));
      assert.equal(hex(await payloadDigest(offer, vectors)), payload_digest);
      for (const [label, due] of [["one-message-secret", secret], ["one-message-noise", error]]) {
        const drawn = await gaussian(await expand(unhex(draws[1]), bind(label), 32), due.length / 2);
        assert.equal(hex(new Uint8Array(drawn.buffer)), due);
      }
      const made = await upload(offer, {
        id: BigInt(role.split("/")[1]), vectors,
        identity: await identityIn(session, role), coins: unhex(session.coins[role]),
      });
      let at = 0;
      for (const [part, due] of parts[role.replace("client", "upload")]) {
        const bytes = hex(made.slice(at, (at += due.length / 2)));
        if (!FRESH.test(part)) assert.equal(bytes, due, part);
      }
      assert.equal(at, made.length);
    }
  });
}

// --- Refusals --------------------------------------------------------------------------------

/** A message with its change. */
function altered(message, change) {
  if (!change) return message;
  const [removes, inserts] = [unhex(change.removes), unhex(change.inserts)];
  const end = change.at + removes.length;
  assert(equal(message.slice(change.at, end), removes), "the change removes the bytes at its position");
  return concat(message.slice(0, change.at), inserts, message.slice(end));
}

for (const refusal of read("refusals/pairwise_client").cases) {
  test(`pairwise, ${refusal.name}: ${refusal.reason}, ${refusal.then}`, async () => {
    const session = sessions.get(refusal.session);
    const client = await pairwiseClient(session, refusal.taker);
    for (const step of session.steps.slice(0, refusal.before)) {
      if (step.role === refusal.taker) await client.answer(session.messages.get(step.message));
    }
    const good = session.messages.get(refusal.takes);
    await assert.rejects(client.answer(altered(good, refusal.change)), { reason: refusal.reason });
    if (refusal.then === "ends") await assert.rejects(client.answer(good), { reason: "wrong_kind" });
    else await client.answer(good);
  });
}

for (const refusal of read("refusals/one_message_client").cases) {
  test(`one message, ${refusal.name}: ${refusal.reason}`, async () => {
    const session = sessions.get(refusal.session);
    const identity = await identityIn(session, refusal.taker);
    const good = await readOffer(session.messages.get("offer"));
    const { corrupted, capacity, holders, now } = session.setting;
    const policy = { ...HOLDER_POLICY, minimumHolders: holders, assumedCorruptedHolders: corrupted, maximumCapacity: capacity };
    const accept = async (message) => {
      const offer = await readOffer(message);
      requireHolderPolicy(offer, policy, now, identity ? identity.authority : new Uint8Array(32));
      requireSubject(good, offer);
      await requireReceipts(offer);
      if (identity) await requireStanding(offer.standing, identity, { policy, now: () => now });
    };
    await accept(session.messages.get("offer"));
    const bad = altered(session.messages.get("offer"), refusal.change);
    await assert.rejects(accept(bad), { reason: refusal.reason });
  });
}

const READERS = { terms: readTerms, description: readDescription, "key file": identityOf };
for (const { what, name, text, reason } of read("refusals/texts").cases) {
  test(`${what}, ${name}: ${reason}`, async () => {
    await assert.rejects(async () => READERS[what](text), (error) => error instanceof Refused && error.reason === reason);
  });
}
