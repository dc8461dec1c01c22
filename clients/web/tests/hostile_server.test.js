/** A malicious server: the client refuses before it has a seat, a charge or an update. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { SigningKey, expand, requireValid } from "../crypto.js";
import { POLICY, PairwiseClient, readOffer } from "../pairwise.js";
import { readTerms } from "../encoding.js";
import { Left, contribute, identityOf } from "../http.js";
import { RoundLedger, inMemory } from "../ledger.js";
import { fieldElement } from "../shamir.js";
import { FORM, Refused, commit, concat, hash, idsOf, hex as hexOf, integer, treeRoot, unhex } from "../wire.js";
import { granted } from "./grants.js";

const TERMS = { all_clients: 3, bits: 16, clip: 1, clients: 3, group: 1, groups: 1, values: 2 };
const DESCRIPTION = {
  session: "0".repeat(32), protocol: "pairwise", mode: "semi_honest", task: "sum", round_number: "7",
  answer_bytes: 1, terms: JSON.stringify(TERMS), form: FORM,
};
const SEAT = { status: 201, body: "0" };
const DONE = { status: 200, body: "the sum of 3 clients was released" };
/** @type {{description: any, message: any, seats: any[]}} */
const says = { description: DESCRIPTION, message: DONE, seats: [] };
/** @type {string[]} */
let heard = [];
const server = createServer((request, response) => {
  heard.push(`${request.method} ${request.url}`);
  request.resume();
  const path = request.url ?? "";
  const given = path.startsWith("/v1/session?") || path === "/v1/session"
    ? { status: 200, body: typeof says.description === "string" ? says.description : JSON.stringify(says.description) }
    : path.endsWith("/seats") ? says.seats.shift() ?? SEAT : says.message;
  const { status, body, ...headers } = given;
  response.writeHead(status, headers);
  response.end(body);
});
let url = "";
before(async () => {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(null)));
  url = `http://127.0.0.1:${/** @type {any} */ (server.address()).port}`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});

/** @param {object} changes @param {object} [options] */
function take({ description = DESCRIPTION, message = DONE, values = [0, 0] }, options = {}) {
  Object.assign(says, { description, message });
  heard = [];
  return contribute(url, values, { ledger: new RoundLedger(inMemory()), patience: 1, ...options });
}

for (const [name, description] of Object.entries({
  "another number of values": { ...DESCRIPTION, terms: JSON.stringify({ ...TERMS, values: 3 }) },
  "codes of 36 bits": { ...DESCRIPTION, terms: JSON.stringify({ ...TERMS, all_clients: 10 ** 6 }) },
  "unknown terms": { ...DESCRIPTION, terms: JSON.stringify({ ...TERMS, noise: 1 }) },
  "a clip that is not a number": { ...DESCRIPTION, terms: JSON.stringify({ ...TERMS, clip: "1" }) },
  "a step of zero": { ...DESCRIPTION, terms: JSON.stringify({ ...TERMS, clip: 1e-300 }) },
  "a mode of the server's choice": { ...DESCRIPTION, mode: "active" },
  "another protocol": { ...DESCRIPTION, protocol: "one-message" },
  "a list as its name": { ...DESCRIPTION, session: [DESCRIPTION.session] },
  "no object": "null",
  "no JSON": "{",
  "terms that are not an object": { ...DESCRIPTION, terms: "null" },
})) {
  test(`a session description with ${name} gets no seat`, async () => {
    await assert.rejects(take({ description }, { protocols: ["pairwise"] }), Refused);
    assert.deepEqual(heard, ["GET /v1/session"]);
  });
}

test("a session of another form is refused by name, and the client tells the server who it is", async () => {
  const [authority, key] = await Promise.all([1, 2].map((seed) => SigningKey.of(new Uint8Array(32).fill(seed))));
  const certificate = await granted(authority, integer(3, 8), key.public);
  const identity = { id: 3n, key, certificate, authority: authority.public };
  for (const form of [FORM - 1, FORM + 1]) {
    const description = { ...DESCRIPTION, form, mode: "active" };
    const why = { reason: "wrong_version", message: new RegExp(`form ${form} .* speaks form ${FORM}`) };
    await assert.rejects(take({ description: { ...description, mode: "semi_honest" } }), why);
    assert.deepEqual(heard, ["GET /v1/session"]);
    await assert.rejects(take({ description }, { identity }), why);
    for (let tries = 0; heard.length < 2 && tries < 100; tries++) await new Promise((resolve) => setTimeout(resolve, 20));
    assert.deepEqual(heard, ["GET /v1/session", `DELETE /v1/sessions/${DESCRIPTION.session}/client`]);
    // A proof over another task's description could be used at the server that has this task.
    await assert.rejects(take({ description: { ...description, task: "hospital" } }, { identity }), why);
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.deepEqual(heard, ["GET /v1/session"]);
  }
});

test("an offer of another form is refused by name", () => {
  const offer = unhex(full.messages.offer);
  offer[7] = FORM - 1;
  assert.throws(() => readOffer(offer), { reason: "wrong_version", message: /form 2 .* speaks form 3/ });
});

test("a session description that is too long is not read to its end", async () => {
  await assert.rejects(take({ description: "x".repeat(2 ** 21) }), Left);
});

test("a message that is too long is not read to its end", async () => {
  const message = { status: 200, body: Buffer.alloc(2 ** 26 + 1), "secagg-stage": "0" };
  await assert.rejects(take({ message }), { message: /longer than/ });
});

test("a redirect is not followed", async () => {
  const message = { status: 307, body: "", location: `${url}/elsewhere` };
  await assert.rejects(take({ message }), { message: /the server is lost/ });
  assert.ok(!heard.some((each) => each.includes("/elsewhere")));
});

for (const stage of ["-1", "1e3", "x", "0x1"]) {
  test(`stage ${stage} is refused`, async () => {
    const message = { status: 200, body: "x", "secagg-stage": stage };
    await assert.rejects(take({ message }), Refused);
    assert.ok(!heard.some((each) => each.includes("/answers/")));
  });
}

test("a server's last sentence is shown as one short line, and a result has numbers", async () => {
  const said = `${"\u202e<b>\n"}${"x".repeat(5000)}`;
  const json = { status: 200, "content-type": "application/json" };
  const body = JSON.stringify({ sentence: said, mean: ["<b>", 0], count: 3 });
  const { sentence, result } = await take({ message: { ...json, body } });
  assert.ok(/^without this client: <b>/.test(sentence) && sentence.length <= 421 && !/[\n\u202e]/.test(sentence));
  assert.equal(result, null);
  await assert.rejects(take({ message: { ...json, body: "[" } }), Refused);
});

test("an address without TLS is refused, except on this machine", async () => {
  for (const far of ["http://a.example", "ftp://127.0.0.1", "http://127.0.0.1.a.example"]) {
    await assert.rejects(contribute(far, [0]), Refused);
  }
});

test("a link without a key is refused", async () => {
  for (const text of ["{", "null", "{}"]) await assert.rejects(identityOf(text), Refused);
});

// --- The ledger ------------------------------------------------------------------------------

test("rounds follow each other, each once, and no update goes into two sums", async () => {
  const ledger = new RoundLedger(inMemory());
  for (let round = 1n; round < 9n; round++) await ledger.charge("a", { round });
  await assert.rejects(ledger.charge("a", { round: 8n }), { reason: "already_answered" });
  await ledger.charge("b", { round: 1n, update: "u", epoch: 5n });
  await assert.rejects(ledger.charge("b", { round: 2n, update: "u", epoch: 5n }), { reason: "already_spent" });
  await assert.rejects(ledger.charge("b", { round: 2n, update: "v", epoch: 4n }), { reason: "wrong_session" });
  await ledger.charge("b", { round: 2n, update: "v" });
  await assert.rejects(ledger.charge("b", { round: 3n, epoch: 4n }), { reason: "wrong_session" });
});

test("a visitor without a seat waits for a session that has one", async () => {
  for (const status of [403, 410]) {
    says.seats = [{ status, body: "no seat" }];
    const shown = [];
    await take({}, { onDescription: (_, isFull) => shown.push(isFull) });
    assert.deepEqual(shown, [true, false]);
    assert.equal(heard.filter((each) => each.endsWith(`?after=${DESCRIPTION.session}`)).length, 1);
  }
});

test("a client names its task in every request for a session", async () => {
  says.seats = [{ status: 403, body: "no seat" }];
  await take({}, { task: DESCRIPTION.task });
  const task = `GET /v1/session?task=${DESCRIPTION.task}`;
  assert.deepEqual(heard.filter((each) => each.includes("?")), [task, `${task}&after=${DESCRIPTION.session}`]);
});

for (const policy of [{ minimumCohort: 4 }, { maximumPopulation: 2 }, { maximumLength: 1 }, { minimumCohort: NaN }]) {
  test(`a session description beyond the policy ${JSON.stringify(policy)} gets no seat`, async () => {
    await assert.rejects(take({}, { policy }), Refused);
    assert.deepEqual(heard, ["GET /v1/session"]);
  });
}

test("an invalid seat is refused", async () => {
  says.seats = [{ status: 201, body: String(2n ** 64n) }];
  await assert.rejects(take({}), Refused);
});

test("a sum that ended before this client uploaded is not its sum", async () => {
  const { isReleased, sentence } = await take({});
  assert.deepEqual([isReleased, sentence], [false, `without this client: ${DONE.body}`]);
});

test("an answered round gets no second seat", async () => {
  const ledger = new RoundLedger(inMemory());
  await ledger.charge(":sum", { round: 7n });
  await assert.rejects(take({}, { ledger }), { reason: "already_answered" });
  assert.ok(!heard.some((each) => each.includes("/seats")));
});

// --- Offers of pairwise masks ----------------------------------------------------------------

const folder = fileURLToPath(new URL("../../../tests/vectors/pairwise_mask/", import.meta.url));
/** @param {string} name */
const vectorOf = (name) => JSON.parse(readFileSync(`${folder}${name}.json`, "utf8"));
const full = vectorOf("semi_honest_full");
/** Positions of an offer's fields after its task. */
const at = (/** @type {number} */ place) => 7 + 1 + 4 + full.parameters.task.length / 2 + 32 + 8 + 4 + place;

/** @param {number} place @param {number[]} bytes */
function offerWith(place, bytes) {
  const message = unhex(full.messages.offer);
  message.set(bytes, at(place));
  return message;
}

test("invalid offers are refused", () => {
  readOffer(unhex(full.messages.offer));
  const layout = at(3 + 24);
  for (const message of [
    offerWith(3, [0, 0, 0, 2]), // a degree in a full graph
    offerWith(2, [1, 0, 0, 0, 3]), // an odd degree
    offerWith(2, [1, 0, 0, 0, 0]),
    offerWith(2, [1, 255, 0, 0, 0]),
    offerWith(11, [0, 0, 0, 1]), // a committee
    offerWith(15, [0, 0, 0, 1]), // a quorum
  ]) {
    assert.throws(() => readOffer(message), Refused);
  }
  const message = unhex(full.messages.offer);
  const words = layout + 4 + new DataView(message.buffer).getUint32(layout);
  for (const [place, byte] of [[words, 7], [words, 65], [words + 33, 1]]) {
    const changed = message.slice();
    changed[place] = byte;
    assert.throws(() => readOffer(changed), Refused);
  }
});

test("a floor that is not a number is refused", () => {
  for (const policy of [{ privacyBits: undefined }, { assumedCorrupted: NaN }, { assumedCorrupted: [NaN] }, { minimumCohort: 1 }]) {
    assert.throws(() => new PairwiseClient({ id: 1n, input: () => [], policy }), Refused);
  }
});

test("a client that is aborted during an answer sends nothing", async () => {
  const [role, coins] = Object.entries(full.coins).find(([name]) => name !== "server") ?? [];
  const bytes = unhex(coins);
  let used = 0;
  let others = async () => {};
  const messages = full.operations.filter((step) => step.role === role).map((step) => unhex(full.messages[step.message]));
  const client = new PairwiseClient({
    id: BigInt(role.split("/")[1]), policy: { modes: ["semi_honest"], minimumCohort: 2, minimumModulusBits: 1 },
    coins: (count) => bytes.slice(used, (used += count)),
    input: async () => {
      await others();
      return [];
    },
  });
  await client.answer(messages[0]);
  await client.answer(messages[1]);
  others = async () => {
    const roster = messages[1].slice();
    roster[roster.length - 1] ^= 1;
    await assert.rejects(client.answer(roster), { reason: "already_answered" });
  };
  await assert.rejects(client.answer(messages[2]), /left/);
});

/** The clients of a recorded session in active mode, and the messages sent to each. */
async function activeClient(options = {}) {
  const vector = vectorOf("active_full");
  const [role, coins] = Object.entries(vector.coins).find(([name]) => name !== "server") ?? [];
  const authority = await SigningKey.of(unhex(vector.identities.authority));
  const key = await SigningKey.of(unhex(vector.identities[role]));
  const id = BigInt(role.split("/")[1]);
  const certificate = await granted(authority, integer(id, 8), key.public);
  const bytes = unhex(coins);
  let used = 0;
  const drawn = [];
  const client = new PairwiseClient({
    id, identity: { id, key, certificate, authority: authority.public }, input: () => [],
    policy: { minimumModulusBits: 1 }, now: () => MADE, ...options,
    coins: (count) => {
      drawn.push(bytes.slice(used, (used += count)));
      return drawn[drawn.length - 1];
    },
  });
  const messages = vector.operations.filter((step) => step.role === role)
    .map((step) => unhex(vector.messages[step.message]));
  return { client, key, messages, drawn, authority };
}

/** Time at which the vectors' authority signed its roster. */
const MADE = 1_800_000_000;
/** Bytes of an advertised entry in active mode. */
const ENTRY = 264;

/**
 * The advertised keys with another entry for the first neighbour, and the matching root.
 * @param {PairwiseClient} client @param {Uint8Array} message
 * @param {(entry: Uint8Array, id: Uint8Array) => Promise<void>} change
 */
async function rosterWith(client, message, change) {
  const out = message.slice();
  // After the header and the tag: the list, the root, the opening, a count and the entries.
  const root = 19 + new DataView(out.buffer).getUint32(15);
  const ids = idsOf(out.slice(19, root), 2 ** 16);
  const others = ids.filter((id) => id !== client.id);
  const entry = (/** @type {bigint} */ id) => {
    const start = root + 68 + ENTRY * others.indexOf(id);
    return id === client.id ? client.entry : out.subarray(start, start + ENTRY);
  };
  await change(entry(others[0]), integer(others[0], 8));
  const leaves = ids.map((id) => hash("roster-entry", integer(id, 8), entry(id)));
  out.set(await treeRoot(await Promise.all(leaves)), root);
  return out;
}

test("a client that leaves overwrites its draws, and answers nothing", async () => {
  const { client, messages, drawn } = await activeClient();
  await client.answer(messages[0]);
  assert.equal(drawn.length, 3);
  client.abort();
  assert.ok(drawn.every((secret) => secret.every((byte) => byte === 0)));
  assert.equal(client.mask.own ?? client.channel.own, null);
  await assert.rejects(client.answer(messages[1]), { reason: "wrong_kind" });
});

test("a client that leaves during an answer sends nothing, and keeps no secret", async () => {
  const { client, messages, drawn } = await activeClient();
  await client.answer(messages[0]);
  const under = client.answer(messages[1]);
  client.abort();
  await assert.rejects(under, { reason: "wrong_kind" });
  assert.equal(client.neighbours.size + client.held.size, 0);
  assert.ok(drawn.slice(0, 3).every((secret) => secret.every((byte) => byte === 0)));
});

test("coefficients of shares are overwritten after use", async () => {
  const { client, messages, drawn } = await activeClient();
  await client.answer(messages[0]);
  await client.answer(messages[1]);
  assert.ok(drawn.length > 3);
  assert.ok(drawn.slice(3).every((secret) => secret.every((byte) => byte === 0)));
});

test("counts over their limits are refused before anything is read", async () => {
  const { client, messages } = await activeClient();
  const counted = (/** @type {Uint8Array} */ message, /** @type {number} */ place, /** @type {number[]} */ bytes) => {
    const changed = message.slice();
    changed.set(bytes, place);
    return changed;
  };
  const layout = unhex(full.messages.offer);
  layout.set([0, 1, 0, 1], at(3 + 24) + 4 + 7);
  assert.throws(() => readOffer(layout), { reason: "length_over_limit" });
  await client.answer(messages[0]);
  const root = 19 + new DataView(messages[1].buffer).getUint32(15);
  for (const [place, bytes] of [[15, [1, 0, 0, 0]], [root + 64, [0, 1, 0, 0]]]) {
    const { client: another } = await activeClient();
    await another.answer(messages[0]);
    await assert.rejects(another.answer(counted(messages[1], place, bytes)), { reason: "length_over_limit" });
  }
  await client.answer(messages[1]);
  // After header, tag and one byte of sharers: two shares, a commitment, a signature, and the length of a path.
  const path = 7 + 8 + 1 + 80 + 32 + 64;
  await assert.rejects(client.answer(counted(messages[2], path, [65])), { reason: "length_over_limit" });
});

test("a draw that is not a field element is overwritten", () => {
  const drawn = [];
  fieldElement((count) => {
    drawn.push(new Uint8Array(count).fill(drawn.length ? 1 : 255));
    return drawn[drawn.length - 1];
  });
  assert.deepEqual(drawn.map(([first]) => first), [0, 1]);
});

test("derived and committed secrets leave no copy", async () => {
  const copies = [];
  const { subtle } = globalThis.crypto;
  const [sign, digest] = [subtle.sign, subtle.digest];
  subtle.sign = async (...given) => {
    copies.push(new Uint8Array(await sign.apply(subtle, given)));
    return copies[copies.length - 1].buffer;
  };
  subtle.digest = (name, bytes) => {
    copies.push(bytes);
    return digest.call(subtle, name, bytes);
  };
  try {
    await expand(new Uint8Array(32), new Uint8Array(0), 16);
    await commit("share-digest", [], new Uint8Array(32));
  } finally {
    Object.assign(subtle, { sign, digest });
  }
  assert.ok(copies.length === 2 && copies.every((copy) => copy.every((byte) => byte === 0)));
});

test("an integer that does not fit its bytes is refused", () => {
  for (const [value, size] of [[256, 1], [-1, 4], [2n ** 64n, 8]]) {
    assert.throws(() => integer(value, size), RangeError);
  }
});

test("a client's own identity key is refused for a neighbour", async () => {
  const { client, key, messages, authority } = await activeClient();
  await client.answer(messages[0]);
  const changed = await rosterWith(client, messages[1], async (entry, id) => {
    const certificate = await granted(authority, id, key.public);
    const statement = [client.attempt, id, entry.slice(0, 32), entry.slice(32, 64), entry.slice(64, 96)];
    entry.set(concat(key.public, certificate, await key.sign("signed-advertisement", ...statement)), 96);
  });
  await assert.rejects(client.answer(changed), { reason: "public_key_reused" });
});

test("work in progress when a message is refused leaves no secret behind", async () => {
  const { client, messages } = await activeClient();
  await client.answer(messages[0]);
  const changed = await rosterWith(client, messages[1], async (entry) => {
    entry[ENTRY - 1] ^= 1;
  });
  await assert.rejects(client.answer(changed), { reason: "authentication_failed" });
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(client.neighbours.size + client.held.size, 0);
});

test("a client does not spin when the server has nothing new", async () => {
  const stop = new AbortController();
  const taking = take({ message: { status: 204, body: "" } }, { signal: stop.signal, patience: 60 });
  await new Promise((resolve) => setTimeout(resolve, 2000));
  assert.ok(heard.length < 15, `${heard.length} requests in two seconds`);
  stop.abort();
  await assert.rejects(taking);
  assert.ok(heard.length < 16);
});

test("an offer with an old or future standing is refused", async () => {
  for (const now of [MADE + 24 * 3600 + 1, MADE - 3601]) {
    const { client, messages, drawn } = await activeClient({ now: () => now });
    await assert.rejects(client.answer(messages[0]), { reason: "below_floor" });
    assert.equal(drawn.length, 0);
  }
});

test("an offer with a forged standing is refused", async () => {
  const { client, messages } = await activeClient();
  const forged = messages[0].slice();
  forged[forged.length - 65] ^= 1; // the last byte of the signature, before commitment and nonce
  await assert.rejects(client.answer(forged), { reason: "below_floor" });
});

test("a standing older than one seen, or a second one of the same time, is refused", async () => {
  const ledger = new RoundLedger(inMemory());
  const seen = (authority, number, digest) => ledger.see(authority, number, digest);
  for (const [expected, number, mark] of [[null, 0n, null], [null, 0n, null], ["below_floor", 0n, "ff"], ["below_floor", 1n, "ff"]]) {
    const { client, messages } = await activeClient({ seen });
    if (mark) await ledger.see(hexOf(client.identity.authority), BigInt(MADE) + number, mark).catch(() => {});
    if (number || !mark) {
      const answered = client.answer(messages[0]);
      await (expected ? assert.rejects(answered, { reason: expected }) : answered);
    } else {
      await assert.rejects(ledger.see(hexOf(client.identity.authority), BigInt(MADE), mark), { reason: expected });
    }
  }
});

test("a revoked or expired certificate is refused", () => {
  const grant = new Uint8Array([0, 0, 0, 5, 0, 0, 0, 10]);
  const standing = { number: 35999n, digest: new Uint8Array(32), revoked: [4], signature: new Uint8Array(64) };
  requireValid(grant, standing);
  assert.throws(() => requireValid(grant, { ...standing, number: 36000n }), { reason: "authentication_failed" });
  assert.throws(() => requireValid(grant, { ...standing, revoked: [4, 5] }), { reason: "authentication_failed" });
});
