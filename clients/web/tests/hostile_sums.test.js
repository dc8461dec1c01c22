/** A server that changes what it says over HTTP: one-message offers, bodies, stores. Uploads are counted. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { gzipSync } from "node:zlib";

import { SigningKey, keyPair, random, sha256 } from "../crypto.js";
import { applicationDigest, layoutOf } from "../encoding.js";
import { Left, contribute } from "../http.js";
import { RoundLedger, inMemory } from "../ledger.js";
import { requireExact } from "../one_message.js";
import { FORM, Refused, concat, hash, header, hex, integer, utf8, variable } from "../wire.js";
import { granted } from "./grants.js";

const TERMS = { all_clients: 3, bits: 16, clip: 1, clients: 3, group: 1, groups: 1, values: 2 };
const text = JSON.stringify(TERMS);
const DESCRIPTION = {
  session: "0".repeat(32), protocol: "one-message", mode: "semi_honest", task: "sum", round_number: "7",
  answer_bytes: 1, terms: text, form: FORM,
};
const DONE = { status: 200, body: "the sum of 3 clients was released" };
/** The server's answers to requests for a message; the last one repeats. @type {any[]} */
let script = [];
/** Session descriptions, likewise. @type {any[]} */
let descriptions = [];
/** @type {any[]} */
let seats = [];
/** @type {string[]} */
let heard = [];
const next = (/** @type {any[]} */ said) => (said.length > 1 ? said.shift() : said[0]);
const server = createServer((request, response) => {
  const { method, url: path = "" } = request;
  heard.push(`${method} ${path}`);
  request.resume();
  let said = { status: 202, body: "" };
  if (/session(\?|$)/.test(path)) said = next(descriptions);
  else if (path.endsWith("/seats")) said = next(seats);
  else if (path.endsWith("/message")) said = next(script);
  const { status, body, cut, ...headers } = /** @type {any} */ (said);
  response.writeHead(status, headers);
  response.write(body);
  if (cut) setTimeout(() => response.destroy(), 20);
  else response.end();
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
beforeEach(() => {
  [heard, descriptions, seats] = [[], [descriptionOf()], [{ status: 201, body: "0" }]];
});

/** @param {object} [changes] */
const descriptionOf = (changes) => ({ status: 200, body: JSON.stringify({ ...DESCRIPTION, ...changes }) });
/** @param {number} stage @param {Uint8Array} bytes */
const messageOf = (stage, bytes) => ({ status: 200, body: Buffer.from(bytes), "secagg-stage": String(stage) });
/** Answers that the server received. */
const answers = () => heard.filter((each) => each.includes("/answers/"));
const POLICY = { minimumHolders: 3, assumedCorruptedHolders: 0 };

/** @param {any[]} said @param {object} [options] */
function take(said, options = {}) {
  script = said;
  return contribute(url, [0.5, -0.5], { policy: POLICY, ledger: new RoundLedger(inMemory()), patience: 1, ...options });
}

/** The offer of a server that is its own holders, for the description's terms, with changes. @param {any} [changes] */
async function offerOf(changes = {}) {
  const given = {
    epoch: 5n, mode: Number(Boolean(changes.authority)), standing: new Uint8Array(108), suite: 0, threshold: 3, packing: 1, expiry: 2 ** 40, task: utf8("sum"), round: 7n,
    capacity: 3, bounds: null, receipts: 2, until: Math.floor(Date.now() / 1000) + 3600, model: await sha256(new Uint8Array(0)),
    application: await applicationDigest(text, TERMS), ...changes,
  };
  const thresholds = [0, given.threshold, given.packing, 2].map((each) => integer(each, 2));
  const authority = changes.authority?.public ?? new Uint8Array(32);
  const signers = await Promise.all([1, 2, 3].map(() => given.mode && SigningKey.of(random(32))));
  const holders = signers.map((key, at) => concat(integer(at + 1, 8), key ? key.public : new Uint8Array(32)));
  /** A signature, of 4 bytes for its length and 64, or an empty one. */
  const signed = async (key, label, ...parts) => variable(key ? await key.sign(label, ...parts) : new Uint8Array(0));
  const statement = concat(
    header(100), integer(given.epoch, 8), [given.mode, given.suite], ...thresholds, integer(given.expiry, 8),
    authority, integer(3, 4), ...holders, integer(0, 4),
  );
  const record = concat(statement.slice(0, -4), await signed(changes.authority, "one-message-record", statement));
  const digest = await hash("one-message-record", statement);
  const keys = await Promise.all(holders.map(async (_, at) => {
    const { public: key } = await keyPair(random(32));
    const [nonce, until] = [random(32), integer(given.until, 8)];
    const signature = await signed(signers[at], "one-message-holder-keys", digest, integer(at, 2), key, nonce, until);
    return variable(concat(header(101), digest, integer(at, 2), variable(key), nonce, until, signature));
  }));
  const segments = [{ length: 2, ringBits: 18, bounds: given.bounds }, { length: 1, ringBits: 1, bounds: null }];
  const numbers = {
    task: given.task, segments, degree: 1024, modulusBits: 28, guardBits: 8, droppedBits: 0, capacity: given.capacity,
    minimumCohort: 3, corruptedClients: 1,
  };
  for (let isExact = false; !isExact; segments[1].length++) {
    try {
      requireExact(/** @type {any} */ (numbers));
      isExact = true;
      segments[1].length--;
    } catch {
      assert.ok(segments[1].length < 10_000);
    }
  }
  const rows = segments.map(({ length, ringBits, bounds }) => concat(
    integer(length, 8), [ringBits, bounds ? 1 : 0], ...(bounds ?? []).map((each) => integer(2n ** 63n + BigInt(each), 8)), [0],
  ));
  const configuration = concat(
    [given.form ?? FORM], variable(given.task), variable(await layoutOf(TERMS)),
    integer(1024, 2), [28, 8, 0], integer(2, 4), ...rows, integer(given.capacity, 4), integer(3, 2), integer(0, 2),
    integer(given.threshold, 2), integer(given.packing, 2), integer(2, 2), integer(3, 4), integer(1, 4), given.standing,
  );
  const epoch = await hash("one-message-epoch", ...keys.map((each) => each.slice(4)));
  const t0 = await hash("one-message-configuration", epoch, concat(header(110), configuration));
  const terms = concat(integer(given.round, 8), given.model, given.application);
  const agreed = await hash("one-message-terms", integer(given.round, 8), given.model, given.application);
  const receipts = await Promise.all(Array.from({ length: given.receipts }, async (_, at) =>
    concat(integer(at, 2), await signed(signers[at], "one-message-offer-receipt", t0, integer(at, 2), agreed))));
  return concat(
    header(102), variable(record), integer(3, 4), ...keys, configuration, terms, integer(given.receipts, 4), ...receipts,
  );
}

test("an offer that fits the session description gets one upload", async () => {
  const { isReleased, clamped } = await take([messageOf(0, await offerOf()), DONE]);
  assert.deepEqual([isReleased, clamped, answers().length], [true, 0, 1]);
});

for (const [name, changes] of Object.entries({
  "another round": { round: 8n },
  "another task": { task: utf8("mus") },
  "other terms": { application: new Uint8Array(32) },
  "another model": { model: new Uint8Array(32) },
  "bounds that differ from the terms": { bounds: [-1, 1] },
  "the hybrid suite": { suite: 1 },
  "an epoch that is over": { expiry: 1 },
  "expired keys": { until: 1 },
  "keys that last for two days": { until: Math.floor(Date.now() / 1000) + 48 * 3600 },
  "a receipt of one holder": { receipts: 1 },
  "a threshold below the packing": { threshold: 1, packing: 2 },
  "more clients than the codes can sum": { capacity: 5 },
})) {
  test(`an offer of one message with ${name} gets no upload, and nothing is spent`, async () => {
    const ledger = new RoundLedger(inMemory());
    const offer = await offerOf(changes);
    const reason = changes.receipts ? "quorum_not_met" : "below_floor";
    await assert.rejects(take([messageOf(0, offer), DONE], { ledger }), { reason });
    assert.deepEqual(answers(), []);
    await ledger.requireOpen(":sum", { round: 7n });
  });
}

test("an offer of one message of another form is refused by name", async () => {
  await assert.rejects(take([messageOf(0, await offerOf({ form: FORM - 1 })), DONE]), { reason: "wrong_version" });
  assert.deepEqual(answers(), []);
});

/** A standing of a given age in seconds. @param {SigningKey} authority */
async function standingOf(authority, { age = 0, revoked = /** @type {number[]} */ ([]), by = authority } = {}) {
  const number = BigInt(Math.floor(Date.now() / 1000) - age);
  const parts = [integer(number, 8), new Uint8Array(32), ...revoked.map((each) => integer(each, 4))];
  const signature = await by.sign("standing", authority.public, ...parts);
  return concat(parts[0], parts[1], integer(revoked.length, 4), ...parts.slice(2), signature);
}

for (const [name, shown, reason] of /** @type {[string, any, string | null][]} */ ([
  ["a fresh standing", { age: 60, revoked: [3] }, null],
  ["a standing of two days ago", { age: 48 * 3600 }, "below_floor"],
  ["a standing from the future", { age: -7200 }, "below_floor"],
  ["a standing that another key signed", { isForged: true }, "below_floor"],
  ["a standing that revokes this client", { revoked: [0] }, "below_floor"],
  ["a standing older than one seen before", { age: 61, seen: 60 }, "below_floor"],
])) {
  test(`an offer of one message with ${name} gets ${reason ? "no upload, and nothing is spent" : "an upload"}`, async () => {
    const [authority, key, other] = await Promise.all([1, 2, 3].map(() => SigningKey.of(random(32))));
    const certificate = await granted(authority, integer(0, 8), key.public);
    const identity = { id: 0n, key, certificate, authority: authority.public };
    const standing = await standingOf(authority, { ...shown, ...(shown.isForged ? { by: other } : {}) });
    const ledger = new RoundLedger(inMemory());
    if (shown.seen) await ledger.see(hex(authority.public), BigInt(Math.floor(Date.now() / 1000) - shown.seen), "");
    descriptions = [descriptionOf({ mode: "active" })];
    const taken = take([messageOf(0, await offerOf({ authority, standing })), DONE], { ledger, identity });
    if (!reason) {
      assert.ok((await taken).isReleased);
      return;
    }
    await assert.rejects(taken, { reason });
    assert.deepEqual(answers(), []);
    await ledger.requireOpen("0:sum", { round: 7n });
  });
}

test("an offer that is truncated, or has an extra byte, gets no upload", async () => {
  const offer = await offerOf();
  for (const bytes of [offer.slice(0, -1), offer.slice(0, 200), concat(offer, [0])]) {
    await assert.rejects(take([messageOf(0, bytes), DONE]), Refused);
    assert.deepEqual(answers(), []);
  }
});

test("a second offer gets no second upload, at the same stage or a later one", async () => {
  for (const stage of [0, 1]) {
    heard = [];
    const said = [messageOf(0, await offerOf()), messageOf(stage, await offerOf()), DONE];
    if (stage) await assert.rejects(take(said), { reason: "already_answered" });
    else await take(said);
    assert.deepEqual(new Set(answers().map((each) => each.slice(-1))), new Set(["0"]));
  }
});

test("an older epoch of holders gets no upload", async () => {
  const ledger = new RoundLedger(inMemory());
  await ledger.charge(":sum", { round: 6n, epoch: 6n });
  await assert.rejects(take([messageOf(0, await offerOf()), DONE], { ledger }), { reason: "wrong_session" });
  assert.deepEqual(answers(), []);
});

test("only one of two tabs with one ledger uploads", async () => {
  const ledger = new RoundLedger(inMemory());
  const offer = messageOf(0, await offerOf());
  const both = [take([offer, offer, DONE], { ledger }), take([offer, offer, DONE], { ledger })];
  const ended = await Promise.allSettled(both);
  const refused = ended.filter(({ status }) => status === "rejected");
  assert.deepEqual(refused.map(({ reason }) => reason.reason), ["already_answered"]);
  assert.equal(answers().length, 1);
});

test("a full store prevents the upload, and the server learns that the client left", async () => {
  const full = inMemory();
  const ledger = new RoundLedger(async (name, change) => {
    await full(name, (spent) => {
      const changed = change(spent);
      if (changed !== spent) throw new DOMException("the disk is full", "QuotaExceededError");
      return changed;
    });
  });
  await assert.rejects(take([messageOf(0, await offerOf()), DONE], { ledger }), { name: "QuotaExceededError" });
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual(answers(), []);
  assert.ok(heard.some((each) => each.startsWith("DELETE")));
});

// --- Session descriptions and bodies ------------------------------------------------------------------------

for (const protocol of ["enclave", "two-servers", "lightsecagg", "__proto__", "constructor"]) {
  test(`a session description of ${protocol} is refused by name before anything is sent`, async () => {
    descriptions = [descriptionOf({ protocol })];
    await assert.rejects(take([DONE]), new RegExp(`does not support the protocol ${protocol}`));
    assert.deepEqual(heard, ["GET /v1/session"]);
  });
}

test("the next session's description is checked against the same policy", async () => {
  for (const changes of [{ task: "mus" }, { mode: "active" }, { terms: JSON.stringify({ ...TERMS, clients: 2 }) }]) {
    [heard, descriptions, seats] = [[], [descriptionOf(), descriptionOf(changes)], [{ status: 403, body: "" }, { status: 201, body: "0" }]];
    await assert.rejects(take([DONE]), Refused);
    assert.equal(heard.filter((each) => each.endsWith("/seats")).length, 1);
  }
});

test("a truncated body is requested again, and never accepted", async () => {
  const offer = await offerOf();
  const cut = { ...messageOf(0, offer.slice(0, -1)), "content-length": offer.length, cut: true };
  await assert.rejects(take([cut]), Left);
  assert.deepEqual(answers(), []);
  const { isReleased } = await take([cut, messageOf(0, offer), DONE]);
  assert.deepEqual([isReleased, answers().length], [true, 1]);
});

test("a compressed body that unpacks beyond the limit is not read to its end", async () => {
  const body = gzipSync(Buffer.alloc(2 ** 27));
  descriptions = [{ status: 200, body, "content-encoding": "gzip" }];
  await assert.rejects(take([DONE]), /longer than 1048576/);
});

test("a mean of another length than the values is not accepted", async () => {
  const json = (/** @type {number[]} */ mean) => ({
    status: 200, "content-type": "application/json", body: JSON.stringify({ sentence: "done", mean, count: 3 }),
  });
  assert.deepEqual((await take([messageOf(0, await offerOf()), json([0, 1])])).result, { mean: [0, 1], count: 3 });
  assert.equal((await take([messageOf(0, await offerOf()), json([0, 1, 2])])).result, null);
});
