/**
 * One-message client: classic suite, exact segments.
 * Implements protocols/one_message/README.md.
 * @module
 */
import {
  START, counterMode, expand, isCanonical, isLowOrder, random, readStanding, sealTo, sha256, verify,
} from "./crypto.js";
import { addMask, gaussian, pieces, placed, shapeOf } from "./lattice.js";
import { pack, reduce } from "./ring.js";
import { CHECKS, PRIME, elements, evaluation, interpolation, multiply } from "./sharing.js";
import {
  Reader, bind, bytes, choice, concat, decode, equal, flag, hash, header, hex, integer, list, long, messageForm, must, number,
  record, sized, treeRoot, variable,
} from "./wire.js";

/** @typedef {import("./pairwise.js").Identity} Identity */
/** @typedef {{length: number, ringBits: number, bounds: [number, number] | null}} Segment */
/** @typedef {Awaited<ReturnType<typeof readOffer>>} Offer */
/** @typedef {{[name in keyof typeof HOLDER_POLICY]: number}} HolderPolicy */
/** The weakest session that a client accepts. */
export const HOLDER_POLICY = Object.freeze({
  minimumCohort: 3,
  assumedCorrupted: 1,
  minimumHolders: 4,
  assumedCorruptedHolders: 1,
  maximumCapacity: 2 ** 14,
  maximumLength: 2 ** 34,
  /** Seconds for which a server can hide that a key was revoked. */
  maximumStandingAge: 24 * 3600,
});

const KIND = Object.freeze({
  payload: 2, record: 100, keys: 101, offer: 102, upload: 103, configuration: 110,
});
const [DIGEST, KEY, SIGNATURE] = [32, 32, 64];
const NONE = new Uint8Array(0);
const OFFSET = 1n << 63n;
const VALUE_BITS = 32;
/** For each degree, the widest modulus estimated at 128 bits of security, up to the 64 bits of a word. */
const GREATEST_MODULUS = new Map([[1024, 28], [2048, 54], [4096, 64]]);
const WIDTH = 4.5;
/** Maximum lifetime of a holder's keys, in seconds. */
const LONGEST_KEYS = 24 * 3600;
/** Standard deviations that fit the guard bits. */
const DEVIATIONS = 10;
const MOST = Object.freeze({
  holders: 256, droppedBits: 4, message: 2 ** 22, task: 256, segments: 2 ** 16, key: 2 ** 11,
  capacity: 529_984, // a sum of more secrets may exceed the field of the shares
  coefficients: 2 ** 31,
});

// --- The offer -------------------------------------------------------------------------------

const OFFER = { record: sized(MOST.message), keys: list(MOST.holders, sized(MOST.message)) };
const CONFIGURATION = {
  form: messageForm,
  task: sized(MOST.task),
  layout: sized(MOST.message),
  degree: number(2),
  modulusBits: number(1),
  guardBits: number(1),
  droppedBits: number(1),
  segments: list(MOST.segments, readSegment),
  capacity: number(4),
  holderCount: number(2),
  corrupted: number(2),
  threshold: number(2),
  packing: number(2),
  quorum: number(2),
  minimumCohort: number(4),
  corruptedClients: number(4),
  standing: readStanding,
};
const RECEIPTS = list(MOST.holders, record({ position: number(2), signature: sized(SIGNATURE) }));
const TERMS = { round: long, model: bytes(DIGEST), application: bytes(DIGEST) };
const RECORD = {
  epoch: long,
  isActive: flag,
  suite: choice(2),
  corrupted: number(2),
  threshold: number(2),
  packing: number(2),
  quorum: number(2),
  expiry: number(8),
  authority: bytes(KEY),
  holders: list(MOST.holders, record({ id: bytes(8), key: bytes(KEY) })),
};
/** Thresholds that the authority signed; an offer must repeat them. */
const SIGNED = /** @type {const} */ (["corrupted", "threshold", "packing", "quorum"]);

/**
 * Decode an offer, and verify its signatures.
 * @param {Uint8Array} message
 * @param {Uint8Array} [authority] signatures of another authority are not verified
 */
export async function readOffer(message, authority) {
  const reader = new Reader(message, KIND.offer);
  const epochOf = record(OFFER)(reader);
  const start = reader.at;
  const configuration = record(CONFIGURATION)(reader);
  const middle = reader.at;
  const terms = record(TERMS)(reader);
  const last = reader.at;
  const receipts = RECEIPTS(reader);
  reader.end();
  requireExact(configuration);
  const { statement, signature, ...signed } = readRecord(epochOf.record);
  must(!authority || equal(signed.authority, authority), "below_floor", "another authority");
  await requireSigned(signed.isActive, signed.authority, signature, "one-message-record", statement);
  const isWhole = epochOf.keys.length === signed.holders.length;
  must(isWhole, "roster_invalid", "the keys do not match the record's holders");
  const digest = await hash("one-message-record", statement);
  const holders = [];
  for (const [at, holder] of signed.holders.entries()) {
    // An absent holder published none.
    const keys = epochOf.keys[at].length ? await readKeys(epochOf.keys[at], at, signed, digest) : null;
    holders.push({ ...holder, sealingKey: keys && keys.key, until: keys && keys.until });
  }
  const published = holders.flatMap(({ sealingKey }) => (sealingKey ? [hex(sealingKey)] : []));
  must(new Set(published).size === published.length, "public_key_reused", "two holders published the same key");
  must(
    configuration.holderCount === holders.length && SIGNED.every((name) => configuration[name] === signed[name]),
    "parameter_out_of_range", "the offer contradicts the record",
  );
  const epoch = await hash("one-message-epoch", ...epochOf.keys);
  const agreed = concat(header(KIND.configuration), message.slice(start, middle));
  return {
    ...signed, ...configuration, ...terms, holders, receipts,
    terms: message.slice(middle, last), // unchanged
    publicSeed: await hash("one-message-public-seed", epoch),
    t0: await hash("one-message-configuration", epoch, agreed),
  };
}

/** @param {Reader} reader @returns {Segment} */
function readSegment(reader) {
  const [length, ringBits, isBounded] = [reader.number(8), reader.number(1), flag(reader)];
  const bound = () => Number(long(reader) - OFFSET);
  /** @type {[number, number] | null} */
  const bounds = isBounded ? [bound(), bound()] : null;
  const half = 2 ** (ringBits - 1);
  must(
    length >= 1 && ringBits >= 1 && ringBits <= 64 &&
      (!bounds || (bounds[0] >= -half && bounds[0] < bounds[1] && bounds[1] < half)),
    "not_canonical", "a segment has no values, or its bounds are out of order or outside its ring",
  );
  must(reader.number(1) === 0, "below_floor", "this client does not support fine bits");
  return { length, ringBits, bounds };
}

/**
 * Refuse numbers with which a sum would not be exact, or a wrong sum of secrets could pass.
 * @param {import("./wire.js").Values<typeof CONFIGURATION>} offer
 */
export function requireExact(offer) {
  const { segments, degree, modulusBits, guardBits, droppedBits, capacity } = offer;
  const isInRange =
    offer.task.length >= 1 && GREATEST_MODULUS.has(degree) &&
    droppedBits <= MOST.droppedBits && capacity >= 1 && capacity <= MOST.capacity &&
    offer.minimumCohort >= offer.corruptedClients + 2 && offer.minimumCohort <= capacity &&
    segments.length >= 2;
  const variance = WIDTH ** 2 + (4 ** droppedBits - 1) / 12;
  const least = Math.ceil(Math.log2(2 * DEVIATIONS * Math.sqrt(capacity * variance) + 1));
  const fits = isInRange && guardBits >= least && guardBits < modulusBits;
  must(fits, "not_canonical", "the numbers of the offer are inconsistent");
  const shapes = segments.map((segment) => shapeOf(offer, segment));
  const areRoomy = shapes.every(({ bits }, i) => bits <= Math.min(modulusBits - guardBits, segments[i].ringBits));
  must(areRoomy, "not_canonical", "a segment does not fit a coefficient");
  const total = shapes.reduce((sum, { count }) => sum + count, 0);
  const areCounted = total <= MOST.coefficients && segments.every(({ length }) => length <= MOST.coefficients);
  must(areCounted, "not_canonical", "there are too many values");
  // The zeros after the values, see the specification's section "Offer": r(q), and the bits that the coefficients lack.
  const noise = bitsOf(Math.sqrt(2.1 * capacity * variance));
  let missing = 64 + degree * bitsOf(WIDTH * Math.sqrt(1.5 * capacity));
  for (const { lowest, count } of shapes.slice(0, -1)) missing -= count * (lowest - noise);
  const last = segments[segments.length - 1];
  must(
    last.length === Math.max(1, Math.ceil(missing / (modulusBits - noise))) && !last.bounds && last.ringBits === 1,
    "not_canonical", "the zeros after the values do not match the numbers",
  );
  const areNarrow = segments.slice(0, -1).every(({ ringBits }) => ringBits <= VALUE_BITS);
  must(areNarrow, "below_floor", `this client masks values of at most ${VALUE_BITS} bits`);
}

/** Bits of entropy of an entry of a vector whose entries' root mean square is below a radius. @param {number} radius */
const bitsOf = (radius) => Math.log2(Math.sqrt(2 * Math.PI * Math.E) * (radius + 0.5));

/** The authority's record of an epoch, and its signed part. @param {Uint8Array} message */
function readRecord(message) {
  const reader = new Reader(message, KIND.record);
  const fields = record(RECORD)(reader);
  const statement = concat(message.slice(0, reader.at), integer(0, 4));
  const signature = sized(SIGNATURE)(reader);
  reader.end();
  const { isActive, holders } = fields;
  must(fields.suite === 0, "below_floor", "this client supports only the classic suite");
  const [ids, keys] = [holders.map(({ id }) => hex(id)), holders.map(({ key }) => hex(key))];
  const areKeys = isActive ? new Set(keys).size === keys.length : !keys.some((key) => /[^0]/.test(key));
  must(
    areKeys && new Set(ids).size === ids.length,
    "parameter_out_of_range", "a holder or its key has two positions",
  );
  return { ...fields, statement, signature };
}

/**
 * Refuse an unsigned part in active mode, or a signed one in semi_honest mode.
 * @param {boolean} isActive @param {Uint8Array} key @param {Uint8Array} signature
 * @param {string} label @param {...Uint8Array} parts
 */
async function requireSigned(isActive, key, signature, label, ...parts) {
  if (isActive) await verify(key, signature, label, ...parts);
  else must(!signature.length, "trailing_bytes", "a signature in semi_honest mode");
}

/**
 * A holder's sealing key. @param {Uint8Array} message @param {number} at the holder's position
 * @param {import("./wire.js").Values<typeof RECORD>} signed @param {Uint8Array} digest of the record
 */
async function readKeys(message, at, { isActive, holders }, digest) {
  const { named, position, key, nonce, until, signature } = decode(message, KIND.keys, {
    named: bytes(DIGEST),
    position: number(2),
    key: sized(MOST.key),
    nonce: bytes(32),
    until: number(8),
    signature: sized(SIGNATURE),
  });
  must(position === at, "roster_invalid", "the holders' keys are out of order");
  must(equal(named, digest), "wrong_session", "the keys belong to another record");
  const parts = [digest, integer(position, 2), key, nonce, integer(until, 8)];
  await requireSigned(isActive, holders[at].key, signature, "one-message-holder-keys", ...parts);
  must(key.length >= KEY, "truncated", "a sealing key is too short");
  must(key.length === KEY, "trailing_bytes", "a sealing key is too long");
  must(isCanonical(key), "public_key_not_canonical", "a sealing key is not in canonical form");
  must(!isLowOrder(key), "public_key_low_order", "a sealing key is a point of low order");
  return { key, until };
}

/**
 * Refuse an offer signed by fewer than a quorum of its holders: restarted holders have other keys.
 * @param {Offer} offer
 */
export async function requireReceipts({ isActive, holders, quorum, receipts, t0, round, model, application }) {
  const ordered = receipts.every(({ position }, i) => !i || position > receipts[i - 1].position);
  const isQuorum = receipts.length >= quorum && receipts.every(({ position }) => holders[position]?.sealingKey);
  must(ordered && isQuorum, "quorum_not_met", `${quorum} holders must sign an offer, in increasing positions`);
  const terms = await hash("one-message-terms", integer(round, 8), model, application);
  for (const { position, signature } of receipts) {
    const parts = [t0, integer(position, 2), terms];
    await requireSigned(isActive, holders[position].key, signature, "one-message-offer-receipt", ...parts);
  }
}

/**
 * Refuse an offer below the policy, before drawing or charging anything.
 * @param {Offer} offer @param {HolderPolicy} policy @param {number} now in seconds
 * @param {Uint8Array} authority this client's own; zeros in semi_honest mode
 */
export function requireHolderPolicy(offer, policy, now, authority) {
  must(equal(offer.authority, authority), "below_floor", "another authority");
  const count = offer.holders.length;
  const { corrupted, threshold, packing, degree, minimumCohort, corruptedClients } = offer;
  must(
    count >= policy.minimumHolders && count <= MOST.holders &&
      corrupted >= policy.assumedCorruptedHolders && corrupted < count,
    "below_floor", `${count} holders, ${corrupted} of them corrupted, are below this client's policy`,
  );
  must(
    minimumCohort >= policy.minimumCohort && corruptedClients >= policy.assumedCorrupted,
    "below_floor", `${minimumCohort} clients, ${corruptedClients} corrupted, are below this client's policy`,
  );
  const length = offer.segments.reduce((total, segment) => total + segment.length, 0);
  must(
    offer.capacity <= policy.maximumCapacity && length <= policy.maximumLength,
    "below_floor", `${offer.capacity} clients, or ${length} values, exceed this client's policy`,
  );
  const least = corrupted + packing;
  must(
    packing >= 1 && degree % packing === 0 && threshold >= least && threshold <= count,
    "below_floor", `the threshold is ${threshold} of ${count}; it must be at least ${least}`,
  );
  const quorum = ((count + corrupted) >> 1) + 1;
  must(
    offer.quorum >= quorum && offer.quorum <= count,
    "below_floor", `${offer.quorum} holders sign a list; at least ${quorum} must`,
  );
  must(
    offer.modulusBits <= (GREATEST_MODULUS.get(degree) ?? 0),
    "below_floor", "the lattice is below 128 bits, or has a degree that this client does not support",
  );
  must(now < offer.expiry, "below_floor", "the epoch of the holders is over");
  const lasts = (/** @type {number | null} */ until) => until === null || (until > now && until - now <= LONGEST_KEYS);
  must(offer.holders.every(({ until }) => lasts(until)), "below_floor", "a holder's keys have expired, or last too long");
}

// --- The upload ------------------------------------------------------------------------------

/**
 * The upload for an offer: the one message of a client.
 * @param {Offer} offer
 * @param {object} own
 * @param {bigint} own.id
 * @param {ArrayLike<number>[]} own.vectors integers for each segment of the layout; others are clamped to integers in range
 * @param {Identity} [own.identity]
 * @param {Uint8Array} [own.coins] 32 fresh bytes, which are overwritten
 */
export async function upload(offer, { id, vectors, identity, coins = random(32) }) {
  const me = integer(id, 8);
  const { t0 } = offer;
  const terms = await hash("one-message-terms", integer(offer.round, 8), offer.model, offer.application);
  const key = offer.isActive ? /** @type {Identity} */ (identity).key : null;
  const clamped = offer.segments.slice(0, -1).map((segment, i) => within(vectors[i], segment));
  const about = [terms, await payloadDigest(offer, clamped)];
  const hedge = await signed(key, "one-message-hedge", t0, ...about);
  const draws = 3 + offer.threshold - offer.packing;
  const [nonce, seed, free, ...seeds] = await hedgedDraws(coins, [t0, me, ...about], hedge, draws);
  const zeros = new Uint8Array(offer.segments[offer.segments.length - 1].length);
  const words = placed(offer, [...clamped, zeros]);
  const secret = await gaussian(await expand(seed, bind("one-message-secret"), 32), offer.degree);
  const noise = await gaussian(await expand(seed, bind("one-message-noise"), 32), words.length);
  await addMask(offer, words, secret, noise);
  for (const used of [seed, noise, ...clamped]) used.fill(0);
  const vector = pieces(offer, words);
  const { shares, rows, toPolynomial } = await dealt(offer, secret, free, seeds, (j) =>
    boundTo("one-message-dealt", offer, me, j, terms, nonce),
  );
  secret.fill(0);
  const sealed = await Promise.all(shares.map((share, j) => {
    const { sealingKey } = offer.holders[j];
    return sealingKey ? sealTo(sealingKey, boundTo("one-message-sealing", offer, me, j, terms, nonce), share) : NONE;
  }));
  const leaves = sealed.map((bytes, j) => hash("one-message-leaf", holderName(offer, j), bytes));
  const root = await treeRoot(await Promise.all(leaves));
  const digests = await Promise.all(vector.map((piece, i) =>
    sha256(concat(bind("upload-piece", t0, me, integer(i, 4)), piece)),
  ));
  const whole = await hash("one-message-vector", ...digests);
  const challenge = await hash("one-message-statement", t0, me, terms, nonce, whole, root);
  const polynomial = await proof(rows, toPolynomial, challenge);
  for (const dealtOut of [...rows, ...shares]) dealtOut.fill(0);
  const statement = await hash("one-message-signed-upload", challenge, polynomial);
  const signature = await signed(key, "one-message-signed-upload", t0, statement);
  const who = key && identity ? concat(key.public, identity.certificate) : new Uint8Array(0);
  return concat(
    header(KIND.upload), t0, me, variable(who), offer.terms, nonce,
    integer(digests.length, 4), ...digests, variable(concat(...vector)), variable(polynomial),
    integer(sealed.length, 4), ...sealed.map(variable), variable(signature),
  );
}

/** @param {import("./crypto.js").SigningKey | null} key @param {string} label @param {...Uint8Array} parts */
async function signed(key, label, ...parts) {
  return key ? key.sign(label, ...parts) : NONE;
}

/**
 * Values as integers within their bounds, or their ring's; none are refused, whatever they are.
 * @param {ArrayLike<number>} values @param {Segment} segment
 */
function within(values, { bounds, length, ringBits }) {
  must(values.length === length, "layout_mismatch", `expected ${length} values, got ${values.length}`);
  const [least, greatest] = bounds ?? [-(2 ** (ringBits - 1)), 2 ** ringBits - 1];
  const out = new (ringBits < 32 ? Int32Array : Float64Array)(length);
  for (let i = 0; i < length; i++) out[i] = Math.trunc(Math.min(greatest, Math.max(least, values[i]))) || 0;
  return out;
}

/** The digest of an update in its canonical encoding; it and the coins determine the draws. @param {Offer} offer @param {ArrayLike<number>[]} vectors */
export async function payloadDigest(offer, vectors) {
  const packed = vectors.map((values, i) => {
    const { ringBits } = offer.segments[i];
    return pack(reduce(new Uint32Array(values), ringBits), ringBits);
  });
  return sha256(concat(header(KIND.payload), await hash("layout", offer.layout), ...packed));
}

/**
 * Draws of 32 bytes, derived from fresh coins and their purpose; coins and signature are overwritten.
 * @param {Uint8Array} coins @param {Uint8Array[]} about @param {Uint8Array} signature @param {number} count
 */
async function hedgedDraws(coins, about, signature, count) {
  const root = await expand(coins, bind("hedged-root", ...about, signature), 32);
  const draws = [];
  for (let draw = 1; draw <= count; draw++) {
    const key = await expand(root, bind("hedged-coins", integer(draw, 8)), 32);
    draws.push(await counterMode(key, START, 32));
    key.fill(0);
  }
  for (const secret of [coins, signature, root]) secret.fill(0);
  return draws;
}

/** @param {Offer} offer @param {number} j */
const holderName = (offer, j) => concat(integer(j, 2), offer.holders[j].id);

/** @param {string} label @param {Offer} offer @param {Uint8Array} me @param {number} j @param {Uint8Array} terms @param {Uint8Array} nonce */
const boundTo = (label, offer, me, j, terms, nonce) =>
  bind(label, offer.t0, me, holderName(offer, j), terms, nonce);

/**
 * Shares of the secret: seeds for the first holders, words for the others.
 * @param {Offer} offer @param {Int8Array} secret @param {Uint8Array} freeSeed which is overwritten
 * @param {Uint8Array[]} seeds @param {(j: number) => Uint8Array} context
 */
async function dealt(offer, secret, freeSeed, seeds, context) {
  const { packing, threshold, holders } = offer;
  const width = offer.degree / packing;
  const free = await elements(freeSeed, "one-message-free-values", NONE, packing * CHECKS);
  const rows = Array.from({ length: packing }, (_, i) => {
    const row = new Uint16Array(width + CHECKS);
    for (let k = 0; k < width; k++) row[k] = (secret[i * width + k] + PRIME) % PRIME;
    row.set(free.subarray(i * CHECKS, (i + 1) * CHECKS), width);
    return row;
  });
  for (const used of [freeSeed, free]) used.fill(0);
  const seeded = seeds.length;
  for (const [j, seed] of seeds.entries()) {
    rows.push(await elements(seed, "one-message-share", context(j), width + CHECKS));
  }
  const points = [
    ...Array.from({ length: packing }, (_, i) => (PRIME - i) % PRIME),
    ...Array.from({ length: seeded }, (_, j) => j + 1),
  ];
  const toPolynomial = interpolation(points);
  const others = Array.from({ length: holders.length - seeded }, (_, i) => seeded + i + 1);
  const columns = toPolynomial.map((row) => Uint16Array.from(row));
  const transfer = multiply(evaluation(others, threshold), columns);
  const shares = [...seeds, ...multiply(transfer, rows).map((words) => new Uint8Array(words.buffer))];
  return { shares, rows, toPolynomial };
}

/** The polynomials that prove a sharing. @param {Uint16Array[]} rows @param {number[][]} toPolynomial @param {Uint8Array} challenge */
async function proof(rows, toPolynomial, challenge) {
  const width = rows[0].length - CHECKS;
  const factors = await elements(challenge, "one-message-challenge", NONE, width * CHECKS);
  const combined = rows.map((row) => {
    const out = new Uint16Array(CHECKS);
    for (let check = 0; check < CHECKS; check++) {
      let sum = row[width + check];
      for (let k = 0; k < width; k++) sum = (sum + row[k] * factors[k * CHECKS + check]) % PRIME;
      out[check] = sum;
    }
    return out;
  });
  return concat(...multiply(toPolynomial, combined).map((words) => new Uint8Array(words.buffer)));
}
