/**
 * A client of pairwise masks in the classic suite: both modes, full and sparse graphs.
 * Implements protocols/pairwise_mask/README.md, round by round.
 * @module
 */
import {
  SEGMENT, agree, derive, drawUpTo, expand, isCanonical, isLowOrder, keyPair, open, random, readStanding, seal,
  requireCertified, requireStanding, requireValid, sha256, shakeWords, standingParts, streamKey, verify,
} from "./crypto.js";
import { addMasks, arrayOf, checkWords, pack, wordBytes } from "./ring.js";
import { PRIME, deal, fieldElement } from "./shamir.js";
import { policyOf, requireParameters } from "./thresholds.js";
import {
  Reader, Refused, allOf, as, bind, bitSet, bytes, choice, commit, concat, decode, equal, flag, hash, header, hex,
  idsOf, integer, kindOf, list, long, messageForm, must, number, record, requireSubject, rootFrom, set, sized, tag, toBigInt,
  treeRoot, utf8,
} from "./wire.js";

/** @typedef {import("./ring.js").Words} Words */
/** @typedef {import("./crypto.js").SigningKey} SigningKey */
/** @typedef {import("./crypto.js").Standing} Standing */
/** A certified key. @typedef {{id: bigint, key: SigningKey, certificate: Uint8Array, authority: Uint8Array}} Identity */
/** The weakest session that a client accepts. */
export const POLICY = Object.freeze({
  modes: /** @type {readonly string[]} */ (Object.freeze(["semi_honest", "active"])),
  minimumCohort: 3,
  assumedCorrupted: 1,
  privacyBits: 40,
  maximumPopulation: 10000,
  maximumDegree: 1024,
  minimumModulusBits: 4,
  maximumLength: 2 ** 28,
  /** Seconds for which a server can hide that a key was revoked. */
  maximumStandingAge: 24 * 3600,
});
/** @typedef {{[name in keyof typeof POLICY]: name extends "modes" ? readonly string[] : number}} Policy */
/**
 * Subject of a session; omitted fields are not compared.
 * @typedef {object} OwnValues
 * @property {number[][]} [layout] bits and length of each segment @property {Uint8Array} [layoutVersion]
 * @property {number} [capacity] maximum number of clients that the codes can sum
 */
/** @typedef {Partial<import("./wire.js").Subject> & OwnValues} About */

/** Minimum bits of security of each mode. */
const PRIVACY_BITS = { semi_honest: 40, active: 100 };

/** Kinds of messages and of a client's answers. */
const KIND = Object.freeze({
  offer: 16, advertisement: 17, advertisedKeys: 18, shares: 19, deliveredShares: 20,
  maskedInput: 21, survivors: 22, survivorSignature: 23, request: 24, unmasking: 25,
});
/** The expected kind after the session is over. */
const OVER = -1;
const [KEY, DIGEST, SIGNATURE, GRANT] = [32, 32, 64, 72];
/** Two shares, sealed. */
const SEALED = 80;
const NONE = new Uint8Array(0);
/** @type {import("./crypto.js").KeyPair} */
const NO_KEYS = Object.freeze({ own: /** @type {any} */ (null), public: NONE });
const LEFT = "this client left the session";
/** Default limits on a field's bytes and items; a session may lower them. */
const MOST = Object.freeze({ task: 256, layout: 2 ** 21, segments: 2 ** 16, id: 10, path: 64 });
/** Segments of the stream of one key. */
const MOST_PARTS = 2 ** 16;
/** An offer refused for one of these reasons changes nothing, and another may follow. */
const OFFER_IS_REFUSED = ["below_floor", "parameter_out_of_range"];

// --- The offer -------------------------------------------------------------------------------

const OFFER = {
  form: messageForm,
  task: sized(MOST.task),
  model: bytes(DIGEST),
  round: long,
  attempt: number(4),
  isActive: flag,
  suite: choice(2),
  isSparse: flag,
  degree: number(4),
  threshold: number(4),
  committee: number(4),
  quorum: number(4),
  minimumCohort: number(4),
  population: number(4),
  layout: sized(MOST.layout),
  checkWords: number(1),
  application: bytes(DIGEST),
  authority: bytes(DIGEST),
  standing: readStanding,
  commitment: bytes(DIGEST),
  nonce: bytes(DIGEST),
};
const LAYOUT = { segments: list(MOST.segments, readSegment), version: bytes(DIGEST) };
/** @typedef {ReturnType<typeof readOffer>} Offer */

/** Read an offer exactly. @param {Uint8Array} message */
export function readOffer(message) {
  const fields = decode(message, KIND.offer, OFFER);
  const { segments, version } = decode(fields.layout, 1, LAYOUT);
  const offer = { ...fields, segments, layoutVersion: version };
  const { isActive, isSparse, degree, committee, population } = offer;
  const parts = segments.map(({ bits, length }) => {
    const words = length + Math.max(offer.checkWords, Math.ceil(64 / bits));
    return Math.ceil((words * wordBytes(bits)) / SEGMENT);
  });
  /** Numbers, each with its minimum and maximum. @type {[number, number, number][]} */
  const ranges = [
    [offer.task.length, 1, MOST.task],
    [population, 2, isSparse ? 2 ** 20 : 65535],
    [offer.minimumCohort, 2, population],
    [offer.checkWords, 8, 64],
    [degree, isSparse ? 2 : 0, isSparse ? Math.min(population - 1, 65535) : 0],
    [offer.threshold, 2, isSparse ? degree : population - 1],
    [committee, 0, isActive ? population : 0],
    [offer.quorum, Number(isActive), isActive ? committee || population : 0],
    [Number(offer.authority.some(Boolean)), Number(isActive), Number(isActive)],
    [parts.reduce((sum, each) => sum + each, 1), 2, MOST_PARTS], // one more for the count
  ];
  must(
    degree % 2 === 0 && ranges.every(([value, least, most]) => value >= least && value <= most),
    "not_canonical", "the offer is invalid: a number is out of range, or does not fit the mode",
  );
  must(
    isActive || !standingParts(offer.standing).concat(offer.standing.signature).some((part) => part.some(Boolean)),
    "not_canonical", "semi_honest mode must not have a standing",
  );
  must(offer.suite === 0, "below_floor", "this client supports only the classic suite");
  return offer;
}

/** @param {Reader} reader */
function readSegment(reader) {
  const kind = reader.number(1);
  must(kind >= 1 && kind <= 3, "not_canonical", "a segment has an unknown kind");
  must(kind === 1, "below_floor", "this client supports only rings without fine bits");
  const [bits, length] = [reader.number(4), reader.number(8)];
  must(bits >= 1 && bits <= 64 && length >= 1, "not_canonical", "a segment has no values, or bits that no ring has");
  return { bits, length };
}

// --- The graph -------------------------------------------------------------------------------

/**
 * The graph of neighbours: complete, or a ring in a random order.
 * @param {Pick<Offer, "isSparse" | "degree">} offer @param {Uint8Array} seed @param {number} clients
 * @returns {(at: number) => number[]}
 */
export function graphOf(offer, seed, clients) {
  const everybody = [...Array(clients).keys()];
  if (!offer.isSparse) return (at) => everybody.filter((position) => position !== at);
  const words = shakeWords(bind("graph-permutation", seed));
  const order = [...everybody];
  for (let i = clients - 1; i > 0; i--) {
    const j = drawUpTo(words, i);
    [order[i], order[j]] = [order[j], order[i]];
  }
  const place = new Array(clients);
  order.forEach((position, i) => (place[position] = i));
  return (at) => {
    const near = [];
    for (let distance = 1; distance <= offer.degree / 2; distance++) {
      near.push(order[(place[at] + distance) % clients]);
      near.push(order[(place[at] - distance + clients) % clients]);
    }
    return near.sort((a, b) => a - b);
  };
}

/**
 * The members in parts that no mask connects: unmasking reveals the sum of each part.
 * @param {Pick<Offer, "isSparse">} offer @param {(at: number) => number[]} graph @param {number[]} members
 */
function partsOf(offer, graph, members) {
  if (!offer.isSparse) return [members];
  const left = new Set(members);
  return members.map((first) => {
    const part = left.delete(first) ? [first] : [];
    for (const at of part) part.push(...graph(at).filter((near) => left.delete(near)));
    return part;
  }).filter(({ length }) => length);
}

/** The committee's positions. @param {Pick<Offer, "committee">} offer @param {Uint8Array} seed @param {number} clients */
export function committeeOf(offer, seed, clients) {
  const size = offer.committee || clients;
  if (size === clients) return new Set(Array(clients).keys());
  const words = shakeWords(bind("committee", seed));
  const members = new Set();
  while (members.size < size) members.add(drawUpTo(words, clients - 1));
  return members;
}

// --- The client ------------------------------------------------------------------------------

/**
 * A client's data about a neighbour.
 * @typedef {object} Neighbour
 * @property {Uint8Array} id @property {Uint8Array} channel @property {Uint8Array} mask
 * @property {Uint8Array} identity
 * @property {Uint8Array} channelSecret @property {Uint8Array} maskSecret
 */
/** @typedef {{root: Uint8Array, seed: Uint8Array, place: number}} Held */

/**
 * One client in one session. It answers each message once; a fault in an expected message
 * ends the session for it, and its secrets are overwritten.
 */
export class PairwiseClient {
  offer = /** @type {Offer} */ (/** @type {unknown} */ (undefined));
  channelRoot = NONE;
  maskRoot = NONE;
  selfMaskSeed = NONE;
  channel = NO_KEYS;
  mask = NO_KEYS;
  /** Digests of the offer and, with the roster, of the session. */
  attempt = NONE;
  context = NONE;
  /** This client's own entry of the roster. */
  entry = NONE;
  /** The root of the delivered entries. */
  entries = NONE;
  /** Ids of all advertisers. @type {bigint[]} */
  ids = [];
  position = 0;
  /** The seed of the graph and the committee, and the neighbours of a position. */
  seed = NONE;
  graph = /** @type {(at: number) => number[]} */ (() => []);
  /** Positions of the neighbours, of the sharers, and of the neighbours among these. @type {number[]} */
  near = [];
  /** @type {number[]} */
  sharers = [];
  /** @type {number[]} */
  peers = [];
  /** The contributors that this client signed. @type {number[] | undefined} */
  signed;
  /** @type {Map<number, Neighbour>} */
  neighbours = new Map();
  /** @type {Map<number, Held>} */
  held = new Map();
  /** @type {number} */
  expected = KIND.offer;
  /** Number of times the session was ended. */
  ends = 0;
  /** By kind, the message that was answered and the answer. @type {Map<number, {message: string, answer: Uint8Array}>} */
  answered = new Map();

  /**
   * @param {object} own
   * @param {bigint} own.id
   * @param {() => Words[] | Promise<Words[]>} own.input makes the vectors, after every check
   * @param {Identity} [own.identity] for active mode
   * @param {Partial<Policy>} [own.policy]
   * @param {import("./crypto.js").Coins} [own.coins]
   * @param {About} [own.about] the subject that this client expects of the session
   * @param {(authority: string, number: bigint, digest: string) => unknown} [own.seen] remembers standings, and refuses older ones
   * @param {() => number} [own.now] seconds since 1970
   */
  constructor({ id, input, identity, policy, coins = random, about = {}, seen, now = () => Date.now() / 1000 }) {
    this.seen = seen;
    this.now = now;
    this.id = id;
    this.me = integer(id, 8);
    this.input = input;
    this.identity = identity;
    this.policy = policyOf(POLICY, policy);
    this.coins = coins;
    this.about = about;
  }

  get clients() {
    return this.ids.length;
  }

  /**
   * The answer to a message: equal bytes get the same answer, and other bytes of its kind end the session.
   * @param {Uint8Array} message @returns {Promise<Uint8Array>}
   */
  async answer(message) {
    const kind = kindOf(message);
    const digest = hex(await sha256(message));
    const before = this.answered.get(kind);
    if (before?.message === digest) return before.answer;
    if (before) {
      this.abort();
      throw new Refused("already_answered", `a second message of kind ${kind} differs from the first`);
    }
    must(kind === this.expected, "wrong_kind", `a message of kind ${kind} is not expected now`);
    this.expected = OVER;
    const { ends } = this;
    try {
      const { answer, next } = await this.#step(kind, message);
      must(ends === this.ends, "wrong_kind", LEFT);
      this.expected = next;
      this.answered.set(kind, { message: digest, answer });
      return answer;
    } catch (error) {
      // Another message may have ended the session meanwhile; then this failed because secrets were gone.
      const isOver = ends !== this.ends;
      this.abort();
      must(!isOver, "wrong_kind", LEFT);
      const isBelow = error instanceof Refused && OFFER_IS_REFUSED.includes(error.reason);
      if (kind === KIND.offer && isBelow) this.expected = KIND.offer;
      throw error;
    }
  }

  /** The answer to a message, and the kind that is expected next. @param {number} kind @param {Uint8Array} message */
  async #step(kind, message) {
    switch (kind) {
      case KIND.offer: return { answer: await this.#advertise(message), next: KIND.advertisedKeys };
      case KIND.advertisedKeys: return { answer: await this.#share(message), next: KIND.deliveredShares };
      case KIND.deliveredShares: {
        const answer = await this.#upload(message);
        return { answer, next: this.#committee().has(this.position) ? KIND.survivors : KIND.request };
      }
      case KIND.survivors: return { answer: await this.#endorse(message), next: KIND.request };
      default: return { answer: await this.#unmask(message), next: OVER };
    }
  }

  /** Leave the session, even while an answer is computed; nothing is answered afterwards. */
  abort() {
    this.ends += 1;
    this.#clear();
    this.answered.clear();
    this.expected = OVER;
  }

  /** Overwrite this client's secrets and those shared with neighbours; drop WebCrypto's keys. */
  #clearOwn() {
    for (const secret of [this.channelRoot, this.maskRoot, this.selfMaskSeed]) secret.fill(0);
    for (const { channelSecret, maskSecret } of this.neighbours.values()) {
      channelSecret.fill(0);
      maskSecret.fill(0);
    }
    this.channel = this.mask = NO_KEYS;
  }

  /** Overwrite everything that can be overwritten, and drop the rest. */
  #clear() {
    this.#clearOwn();
    for (const held of this.held.values()) {
      held.root.fill(0);
      held.seed.fill(0);
    }
    this.neighbours.clear();
    this.held.clear();
    this.signed = undefined;
  }

  /** The positions that certify the survivors: nobody in semi_honest mode. */
  #committee() {
    const { offer, seed, clients } = this;
    return offer.isActive ? committeeOf(offer, seed, clients) : new Set();
  }

  /** The client's key and certificate, which its policy requires in active mode. */
  #certified() {
    return /** @type {Identity} */ (this.identity);
  }

  /** A signature in active mode, otherwise empty. @param {string} label @param {...Uint8Array} parts */
  async #sign(label, ...parts) {
    return this.offer.isActive ? this.#certified().key.sign(label, ...parts) : NONE;
  }

  // --- Round 0: advertise keys ---------------------------------------------------------------

  /** @param {Uint8Array} message */
  async #advertise(message) {
    const { me, coins } = this;
    const offer = readOffer(message);
    this.#requirePolicy(offer);
    if (offer.isActive) await requireStanding(offer.standing, this.#certified(), this);
    this.offer = offer;
    const attempt = await hash("configuration", message);
    this.attempt = attempt;
    this.channelRoot = coins(KEY);
    this.maskRoot = fieldElement(coins);
    this.selfMaskSeed = fieldElement(coins);
    this.channel = await this.#derivedPair(this.channelRoot, "channel-x25519-key");
    this.mask = await this.#derivedPair(this.maskRoot, "mask-x25519-key");
    const keys = [this.channel.public, this.mask.public];
    const commitment = await commit("commitment-to-self-mask", [attempt, me], this.selfMaskSeed);
    const start = concat(header(KIND.advertisement, attempt), me);
    this.entry = concat(...keys);
    if (!offer.isActive) return concat(start, this.entry, commitment);
    const { key, certificate } = this.#certified();
    const signature = await this.#sign("signed-advertisement", attempt, me, ...keys, commitment);
    this.entry = concat(...keys, commitment, key.public, certificate, signature);
    return concat(start, this.entry);
  }

  /** Refuse a session with another subject, or below the policy. @param {Offer} offer */
  #requirePolicy(offer) {
    const { policy, identity } = this;
    const { layout, layoutVersion, capacity = Infinity } = this.about;
    const mode = offer.isActive ? "active" : "semi_honest";
    const degree = offer.isSparse ? offer.degree : offer.population - 1;
    const shape = offer.segments.map(({ bits, length }) => [bits, length]);
    const length = shape.reduce((total, segment) => total + segment[1], 0);
    requireSubject(this.about, offer);
    /** @type {[boolean, string][]} */
    const conditions = [
      [!layout || `${layout}` === `${shape}`, "the offer's layout differs from that of this client's values"],
      [!layoutVersion || equal(offer.layoutVersion, layoutVersion), "the offer's layout has another version"],
      [offer.population <= capacity, "there are more clients than the codes can sum"],
      [policy.modes.includes(mode), `${mode} mode is below this client's policy`],
      [offer.minimumCohort >= policy.minimumCohort, `a cohort of ${offer.minimumCohort} is below this client's policy`],
      [offer.population <= policy.maximumPopulation, "the population exceeds this client's policy"],
      [degree <= policy.maximumDegree, `a degree of ${degree} exceeds this client's policy`],
      [shape.every(([bits]) => bits >= policy.minimumModulusBits), "a ring is narrower than this client's policy"],
      [length <= policy.maximumLength, `${length} values exceed this client's policy`],
    ];
    for (const [holds, sentence] of conditions) must(holds, "below_floor", sentence);
    must(
      !offer.isActive || (identity && equal(offer.authority, identity.authority)),
      "parameter_out_of_range", "active mode needs a key certified by the offer's authority",
    );
  }

  /** @param {Uint8Array} root @param {string} label */
  async #derivedPair(root, label) {
    const scalar = await expand(root, bind(label, this.attempt), KEY);
    const pair = await keyPair(scalar);
    scalar.fill(0);
    return pair;
  }

  // --- Round 1: share keys -------------------------------------------------------------------

  /** @param {Uint8Array} message */
  async #share(message) {
    await this.#readRoster(message);
    const { offer, near, coins, context, me } = this;
    const roots = deal(this.maskRoot, offer.threshold, near.length, coins);
    const seeds = deal(this.selfMaskSeed, offer.threshold, near.length, coins);
    const entries = await Promise.all(near.map(async (position, i) => {
      const neighbour = this.#neighbour(position);
      const key = await this.#channelKey(neighbour, true);
      const pair = concat(roots[i], seeds[i]);
      const sealed = await seal(key, integer(KIND.shares, 12), pair, this.#aeadHeader(me, neighbour.id));
      for (const secret of [key, pair]) secret.fill(0);
      if (!offer.isActive) return sealed;
      return concat(sealed, await this.#commitment(me, neighbour.id, i + 1, roots[i], seeds[i]));
    }));
    for (const share of [...roots, ...seeds]) share.fill(0);
    const leaves = entries.map((entry, i) => hash("shares-entry", this.#neighbour(near[i]).id, entry));
    const root = await treeRoot(await Promise.all(leaves));
    const signature = await this.#sign("signed-shares", context, me, integer(near.length, 4), root);
    return concat(header(KIND.shares, context), signature, ...entries);
  }

  /** @param {Uint8Array} message */
  async #readRoster(message) {
    const { offer, attempt } = this;
    const { population } = offer;
    const size = 2 * KEY + (offer.isActive ? DIGEST + KEY + GRANT + SIGNATURE : 0);
    const { clients: ids, root, opening, entries, nodes } = decode(message, KIND.advertisedKeys, {
      attempt: tag(attempt),
      clients: sized(MOST.id * population),
      root: bytes(DIGEST),
      opening: bytes(DIGEST),
      entries: list(population, bytes(size)),
      nodes: list(population, bytes(DIGEST)),
    });
    const isOpened = equal(await hash("graph-opening", opening), offer.commitment);
    must(isOpened, "roster_invalid", "the graph's seed differs from the commitment");
    this.ids = await as("roster_invalid", () => idsOf(ids, population));
    const { clients } = this;
    const isCohort = clients >= offer.minimumCohort;
    const needed = `not enough clients: ${offer.minimumCohort} must complete the key exchange`;
    must(isCohort, "threshold_not_met", `${needed}, ${clients} did`);
    const least = PRIVACY_BITS[offer.isActive ? "active" : "semi_honest"];
    requireParameters(offer, clients, this.policy.assumedCorrupted, Math.max(this.policy.privacyBits, least));
    this.position = this.ids.indexOf(this.id);
    must(this.position >= 0, "roster_invalid", "this client is not on the roster");
    const roster = await hash("roster-root", integer(clients, 4), await hash("client-list", ids), root);
    this.seed = await hash("graph-seed", attempt, roster, opening);
    this.context = await hash("session-context", attempt, roster, this.seed);
    this.graph = graphOf(offer, this.seed, clients);
    const near = this.graph(this.position);
    this.near = near;
    must(entries.length === near.length, "roster_invalid", "the neighbours differ from the graph's");
    const leaf = (/** @type {number} */ position, /** @type {Uint8Array} */ entry) =>
      hash("roster-entry", integer(this.ids[position], 8), entry);
    const leaves = new Map([[this.position, await leaf(this.position, this.entry)]]);
    for (const [i, position] of near.entries()) leaves.set(position, await leaf(position, entries[i]));
    const proven = await as("roster_invalid", () => rootFrom(clients, leaves, nodes));
    must(equal(proven, root), "roster_invalid", "the entries differ from the roster's");
    await allOf(near.map(async (position, i) => {
      this.neighbours.set(position, await this.#readEntry(integer(this.ids[position], 8), entries[i]));
    }));
    const own = [this.channel.public, this.mask.public];
    const others = [...this.neighbours.values()].flatMap(({ channel, mask, identity }) =>
      offer.isActive ? [channel, mask, identity] : [channel, mask],
    );
    if (offer.isActive) own.push(this.#certified().key.public);
    const keys = [...own, ...others].map(hex);
    must(new Set(keys).size === keys.length, "public_key_reused", "a key appears twice");
  }

  /** @param {Uint8Array} id @param {Uint8Array} entry @returns {Promise<Neighbour>} */
  async #readEntry(id, entry) {
    const [channel, mask, commitment, identity] = [0, 32, 64, 96].map((at) => entry.slice(at, at + 32));
    for (const key of [channel, mask]) {
      must(isCanonical(key), "public_key_not_canonical", "a neighbour's key is not in canonical form");
      must(!isLowOrder(key), "public_key_low_order", "a neighbour's key is a point of low order");
    }
    if (this.offer.isActive) {
      await this.#requireCertified(id, identity, entry.slice(128, 200));
      const statement = [this.attempt, id, channel, mask, commitment];
      await verify(identity, entry.slice(200), "signed-advertisement", ...statement);
    }
    return {
      id, channel, mask, identity,
      channelSecret: await agree(this.channel.own, channel),
      maskSecret: await agree(this.mask.own, mask),
    };
  }

  /** @param {Uint8Array} id @param {Uint8Array} key @param {Uint8Array} certificate */
  async #requireCertified(id, key, certificate) {
    const { authority } = this.#certified();
    await requireCertified(authority, id, key, certificate);
    requireValid(certificate, this.offer.standing);
  }

  /** @param {number} position */
  #neighbour(position) {
    return /** @type {Neighbour} */ (this.neighbours.get(position));
  }

  /** The key that seals shares to a neighbour, or from it. @param {Neighbour} neighbour @param {boolean} isSent */
  #channelKey({ id, channel, channelSecret }, isSent) {
    const own = this.channel.public;
    const ends = isSent ? [this.me, id, own, channel] : [id, this.me, channel, own];
    return derive(channelSecret, this.context, bind("channel-aead-key", ...ends));
  }

  /** @param {Uint8Array} sender @param {Uint8Array} receiver */
  #aeadHeader(sender, receiver) {
    return bind("aead-header", integer(KIND.shares, 2), this.context, sender, receiver);
  }

  /**
   * @param {"mask root" | "self-mask seed"} name @param {Uint8Array} dealer @param {Uint8Array} holder
   * @param {number} place @param {Uint8Array} share
   */
  #shareDigest(name, dealer, holder, place, share) {
    const parts = [utf8(name), this.context, dealer, holder, integer(place, 2)];
    return commit("share-digest", parts, share);
  }

  /**
   * @param {Uint8Array} dealer @param {Uint8Array} holder @param {number} place
   * @param {Uint8Array} root @param {Uint8Array} seed
   */
  async #commitment(dealer, holder, place, root, seed) {
    return hash(
      "commitment-to-shares", this.context, dealer, holder, integer(place, 2),
      await this.#shareDigest("mask root", dealer, holder, place, root),
      await this.#shareDigest("self-mask seed", dealer, holder, place, seed),
    );
  }

  // --- Round 2: masked input -----------------------------------------------------------------

  /** @param {Uint8Array} message */
  async #upload(message) {
    await this.#readShares(message);
    const { context } = this;
    const masks = await this.#masks();
    const packed = [];
    let first = 0;
    for (const { bits, vector } of await this.#inputVectors()) {
      first = await addMasks(vector, bits, masks, first);
      packed.push(pack(vector, bits));
    }
    const digest = await sha256(concat(bind("upload-digest"), ...packed));
    const signature = await this.#sign("signed-view", context, this.me, await this.#setDigest(this.sharers), digest);
    this.#clearOwn();
    return concat(header(KIND.maskedInput, context), signature, ...packed);
  }

  /** @param {Uint8Array} message */
  async #readShares(message) {
    const { offer, clients } = this;
    const signed = { commitment: bytes(DIGEST), signature: bytes(SIGNATURE), path: list(MOST.path, bytes(DIGEST), 1) };
    const entry = record({ sealed: bytes(SEALED), ...(offer.isActive ? signed : {}) });
    const reader = new Reader(message, KIND.deliveredShares);
    tag(this.context)(reader);
    const sharers = set(clients)(reader);
    const peers = this.near.filter((position) => sharers.includes(position));
    const delivered = peers.map((position) => ({ position, ...entry(reader) }));
    reader.end();
    const isSharer = sharers.includes(this.position);
    must(isSharer, "survivors_invalid", "the server claims that this client shared nothing");
    this.#requireCohort(sharers, this.position);
    must(peers.length >= offer.threshold, "threshold_not_met", "too few neighbours shared their keys");
    this.sharers = sharers;
    this.peers = peers;
    const leaves = await allOf(delivered.map((each) => this.#readDelivery(each)));
    this.entries = offer.isActive ? await treeRoot(leaves) : NONE;
  }

  /**
   * Hold a pair of shares, or record it as missing; return the leaf of its entry.
   * @param {{position: number, sealed: Uint8Array, commitment?: Uint8Array, signature?: Uint8Array, path?: Uint8Array[]}} entry
   */
  async #readDelivery({ position, sealed, commitment, signature, path }) {
    const { me, context } = this;
    const neighbour = this.#neighbour(position);
    const dealt = this.graph(position);
    const place = dealt.indexOf(this.position) + 1;
    const leaf = await hash("shares-entry", me, concat(sealed, commitment ?? NONE));
    if (commitment && signature && path) {
      const leaves = new Map([[place - 1, leaf]]);
      const root = await as("authentication_failed", () => rootFrom(dealt.length, leaves, path));
      const count = integer(dealt.length, 4);
      await verify(neighbour.identity, signature, "signed-shares", context, neighbour.id, count, root);
    }
    const pair = await this.#opened(neighbour, sealed);
    const [root, seed] = [pair.slice(0, KEY), pair.slice(KEY)];
    pair.fill(0);
    const isWhole = pair.length > 0 && toBigInt(root) < PRIME && toBigInt(seed) < PRIME;
    const fits = isWhole &&
      (!commitment || equal(await this.#commitment(neighbour.id, me, place, root, seed), commitment));
    if (fits) this.held.set(position, { root, seed, place });
    return leaf;
  }

  /** A neighbour's pair of shares; undefined if it does not open. @param {Neighbour} neighbour @param {Uint8Array} sealed */
  async #opened(neighbour, sealed) {
    const key = await this.#channelKey(neighbour, false);
    try {
      return await open(key, integer(KIND.shares, 12), sealed, this.#aeadHeader(neighbour.id, this.me));
    } catch {
      return NONE;
    } finally {
      key.fill(0);
    }
  }

  /** The self mask, and the mask of every edge to a neighbour that shared. */
  async #masks() {
    const { me, context, position: own } = this;
    const edges = this.peers.map(async (position) => {
      const { id, mask, maskSecret } = this.#neighbour(position);
      // Positions are in the order of ids: the client with the larger id adds the mask.
      const ends = own < position ? [me, id, this.mask.public, mask] : [id, me, mask, this.mask.public];
      const seed = await derive(maskSecret, context, bind("pairwise-seed", ...ends));
      const key = await expand(seed, bind("pairwise-mask-key", context, ends[0], ends[1]), 16);
      seed.fill(0);
      return streamOf(own < position ? -1 : 1, key);
    });
    const key = await expand(this.selfMaskSeed, bind("self-mask-key", context, me), 16);
    return Promise.all([streamOf(1, key), ...edges]);
  }

  /** The input and a count of 1, each with its check words. */
  async #inputVectors() {
    const { offer } = this;
    const input = await this.input();
    must(input.length === offer.segments.length, "layout_mismatch", "the input's layout differs from the offer's");
    const segments = offer.segments.map(({ bits, length }, i) => {
      const values = input[i];
      const fits = values instanceof arrayOf(bits) && values.length === length;
      must(fits, "layout_mismatch", `segment ${i} of the input has another length or type`);
      return { bits, values };
    });
    const bits = offer.population.toString(2).length;
    segments.push({ bits, values: arrayOf(bits).of(1) });
    return Promise.all(segments.map(async ({ bits, values }, i) => {
      const count = Math.max(offer.checkWords, Math.ceil(64 / bits));
      const key = await expand(this.context, bind("check-vector", integer(i, 4)), 16);
      const vector = new (arrayOf(bits))(values.length + count);
      vector.set(values);
      vector.set(await checkWords(values, bits, count, key), values.length);
      return { bits, vector };
    }));
  }

  // --- Round 3: consistency check ------------------------------------------------------------

  /** @param {Uint8Array} message */
  async #endorse(message) {
    const { context, clients } = this;
    const { sharers, contributors } = decode(message, KIND.survivors, {
      context: tag(context),
      sharers: set(clients),
      contributors: set(clients),
    });
    this.#requireContributors(contributors);
    must(`${sharers}` === `${this.sharers}`, "survivors_invalid", "the sharers differ from the earlier ones");
    this.signed = contributors;
    const statement = await this.#survivorStatement(this.me, contributors);
    return concat(header(KIND.survivorSignature, context), await this.#sign("signed-survivors", ...statement));
  }

  /** @param {number[]} contributors */
  #requireContributors(contributors) {
    const areSharers = contributors.every((position) => this.sharers.includes(position));
    must(
      areSharers && contributors.includes(this.position),
      "survivors_invalid", "a contributor did not share, or this client is missing",
    );
    this.#requireCohort(contributors);
  }

  /** Refuse members unless each part, or only the part with `of`, is a cohort. @param {number[]} members @param {number} [of] */
  #requireCohort(members, of) {
    const { offer, graph } = this;
    const parts = partsOf(offer, graph, members).filter((part) => of === undefined || part.includes(of));
    const smallest = Math.min(...parts.map(({ length }) => length));
    must(smallest >= offer.minimumCohort, "threshold_not_met", `a sum of ${smallest} is below the minimum cohort`);
  }

  /** @param {number[]} positions */
  #setDigest(positions) {
    const clients = integer(this.clients, 4);
    return hash("client-set", this.context, clients, bitSet(positions, this.clients));
  }

  /** @param {Uint8Array} signer @param {number[]} contributors */
  async #survivorStatement(signer, contributors) {
    return [
      this.context, signer, await this.#setDigest(this.sharers), await this.#setDigest(contributors),
      integer(this.sharers.length, 4), integer(contributors.length, 4),
    ];
  }

  // --- Round 4: unmasking --------------------------------------------------------------------

  /** @param {Uint8Array} message */
  async #unmask(message) {
    const { offer, context, me, peers } = this;
    const contributors = await this.#readRequest(message);
    const holding = peers.filter((position) => this.held.has(position));
    const held = bitSet(holding.map((position) => peers.indexOf(position)), peers.length);
    const shares = concat(...(await Promise.all(holding.map(async (position) => {
      const { root, seed, place } = /** @type {Held} */ (this.held.get(position));
      const isIn = contributors.includes(position);
      const shown = isIn ? seed : root;
      if (!offer.isActive) return shown;
      const dealer = this.#neighbour(position).id;
      const other = isIn
        ? this.#shareDigest("mask root", dealer, me, place, root)
        : this.#shareDigest("self-mask seed", dealer, me, place, seed);
      return concat(shown, await other);
    }))));
    const signature = await this.#sign(
      "signed-unmasking", context, me, await this.#setDigest(contributors), this.entries, held, shares, NONE,
    );
    this.#clear();
    return concat(header(KIND.unmasking, context), signature, held, shares);
  }

  /** Read a request, and refuse it unless exactly this set may be unmasked. @param {Uint8Array} message */
  async #readRequest(message) {
    const { offer, clients } = this;
    const { contributors, endorsements, views } = decode(message, KIND.request, {
      context: tag(this.context),
      contributors: set(clients),
      endorsements: list(clients, record(ENDORSEMENT)),
      views: list(clients, record(VIEW)),
    });
    this.#requireContributors(contributors);
    const isSigned = !this.signed || `${this.signed}` === `${contributors}`;
    must(isSigned, "survivors_invalid", "the set differs from the signed one");
    const present = this.near.filter((position) => contributors.includes(position));
    must(present.length >= offer.threshold, "threshold_not_met", "too few neighbours contributed");
    if (offer.isActive) {
      await this.#requireQuorum(endorsements, contributors);
      await this.#requireViews(views, present);
    } else {
      must(!endorsements.length && !views.length, "trailing_bytes", "semi_honest mode must not have signatures");
    }
    return contributors;
  }

  /** @param {import("./wire.js").Values<typeof ENDORSEMENT>[]} endorsements @param {number[]} contributors */
  async #requireQuorum(endorsements, contributors) {
    const committee = this.#committee();
    const isOrdered = endorsements.every(({ position }, i) =>
      committee.has(position) && (i === 0 || endorsements[i - 1].position < position));
    must(
      isOrdered && endorsements.length >= this.offer.quorum,
      "quorum_not_met", "the committee does not certify these contributors",
    );
    await Promise.all(endorsements.map(async ({ position, key, certificate, signature }) => {
      const id = integer(this.ids[position], 8);
      const known = this.neighbours.get(position);
      await this.#requireCertified(id, key, certificate);
      must(!known || equal(known.identity, key), "quorum_not_met", "a committee member's identity changed");
      const statement = await this.#survivorStatement(id, contributors);
      await verify(key, signature, "signed-survivors", ...statement);
    }));
  }

  /** @param {import("./wire.js").Values<typeof VIEW>[]} views @param {number[]} present */
  async #requireViews(views, present) {
    must(views.length === present.length, "quorum_not_met", "a neighbour's view is missing");
    const sharers = await this.#setDigest(this.sharers);
    await Promise.all(views.map(({ upload, signature }, i) => {
      const { identity, id } = this.#neighbour(present[i]);
      return verify(identity, signature, "signed-view", this.context, id, sharers, upload);
    }));
  }
}

const ENDORSEMENT = { position: number(4), key: bytes(KEY), certificate: bytes(GRANT), signature: bytes(SIGNATURE) };
const VIEW = { upload: bytes(DIGEST), signature: bytes(SIGNATURE) };

/** @param {1 | -1} sign @param {Uint8Array} key which is overwritten @returns {Promise<import("./ring.js").Mask>} */
async function streamOf(sign, key) {
  const imported = await streamKey(key);
  key.fill(0);
  return { sign, key: imported };
}
