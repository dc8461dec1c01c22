/**
 * A client of pairwise masks in the classic suite: both modes, full and sparse graphs.
 * Implements protocols/pairwise_mask/README.md, round by round.
 * @module
 */
import {
  SEGMENT, agree, derive, drawUpTo, expand, isCanonical, isLowOrder, keyPair, open, random, seal,
  sha256, shakeWords, streamKey, verify,
} from "./crypto.js";
import { addMasks, arrayOf, checkWords, pack, scale, wordBytes } from "./ring.js";
import { PRIME, deal, fieldElement } from "./shamir.js";
import { floorsOf, requireParameters } from "./thresholds.js";
import {
  Reader, Refused, allOf, as, bind, bitSet, commit, concat, equal, hash, header, hex, idsOf, integer,
  isLess, kindOf, must, requireSubject, rootFrom, toBigInt, treeRoot, utf8,
} from "./wire.js";

/** @typedef {import("./ring.js").Words} Words */
/** @typedef {import("./ring.js").Mask} Mask */
/**
 * @typedef {object} Identity
 * @property {bigint} id
 * @property {import("./crypto.js").SigningKey} key
 * @property {Uint8Array} certificate
 * @property {Uint8Array} authority
 */
/**
 * The least that a client accepts, whatever a server offers.
 * @typedef {object} Floors
 * @property {readonly string[]} modes
 * @property {number} minimumCohort
 * @property {number} assumedCorrupted
 * @property {number} privacyBits
 * @property {number} maximumPopulation
 * @property {number} maximumDegree
 * @property {number} minimumModulusBits
 * @property {number} maximumLength
 */
/** @type {Readonly<Floors>} */
export const FLOORS = Object.freeze({
  modes: Object.freeze(["semi_honest", "active"]),
  minimumCohort: 3,
  assumedCorrupted: 1,
  privacyBits: 40,
  maximumPopulation: 10000,
  maximumDegree: 1024,
  minimumModulusBits: 4,
  maximumLength: 2 ** 28,
});
/**
 * What a session is about; what is left out is not compared.
 * @typedef {object} OwnValues
 * @property {number[][]} [layout] bits and length of each segment @property {Uint8Array} [layoutVersion]
 * @property {number} [capacity] the largest total weight that the codes have room for
 */
/** @typedef {import("./wire.js").Subject & OwnValues} About */

/** Bits of safety that each mode takes at least. */
const PRIVACY_BITS = { semi_honest: 40, active: 100 };

/** Kinds of messages, and what a client sends back. */
const KIND = Object.freeze({
  offer: 16, advertisement: 17, advertisedKeys: 18, shares: 19, deliveredShares: 20,
  maskedInput: 21, survivors: 22, survivorSignature: 23, request: 24, unmasking: 25,
});
const FORMAT = 2;
const TAG = 8;
const KEY = 32;
const DIGEST = 32;
const SIGNATURE = 64;
/** Two shares, sealed. */
const SEALED = 80;
const NONE = new Uint8Array(0);
/** @type {import("./crypto.js").KeyPair} */
const NO_KEYS = Object.freeze({ own: /** @type {any} */ (null), public: NONE });
const left = () => new Refused("wrong_kind", "this client left the session");
/** Bytes and items of a field at most, where the session does not say less. */
const MOST = Object.freeze({ task: 256, layout: 2 ** 21, segments: 2 ** 16, id: 10, path: 64 });
/** Segments of the stream of one key. */
const MOST_PARTS = 2 ** 16;
/** The kind that is expected once the session is over. */
const OVER = -1;
/** An offer that is refused for one of these changes nothing, and another one may come. */
const OFFER_IS_REFUSED = ["below_floor", "parameter_out_of_range"];

// --- The offer -------------------------------------------------------------------------------

/**
 * @typedef {object} Offer
 * @property {Uint8Array} task @property {Uint8Array} model @property {bigint} round
 * @property {boolean} isActive @property {boolean} isSparse @property {number} degree
 * @property {number} threshold @property {number} committee @property {number} quorum
 * @property {number} minimumCohort @property {number} population @property {number} weight
 * @property {{bits: number, length: number}[]} segments @property {Uint8Array} layoutVersion
 * @property {number} checkWords @property {Uint8Array} application @property {Uint8Array} authority
 * @property {Uint8Array} commitment
 */

/** Read an offer to the byte. @param {Uint8Array} message @returns {Offer} */
export function readOffer(message) {
  const reader = new Reader(message, KIND.offer);
  must(reader.number(1) === FORMAT, "wrong_version", "the offer has another format");
  const task = reader.variable(MOST.task);
  const model = reader.take(DIGEST);
  const round = reader.bigint();
  reader.number(4); // the attempt, which only the digest of the offer needs
  const [mode, suite, topology] = [reader.number(1), reader.number(1), reader.number(1)];
  must(
    mode <= 1 && suite <= 1 && topology <= 1,
    "not_canonical", "the offer has an unknown mode, suite or topology",
  );
  const [degree, threshold, committee, quorum] = reader.list(4, () => reader.number(4));
  const [minimumCohort, population, weight] = reader.list(3, () => reader.number(4));
  const layout = reader.variable(MOST.layout);
  const checkWords = reader.number(1);
  const [application, authority, commitment] = reader.list(3, () => reader.take(DIGEST));
  reader.take(DIGEST); // the server's nonce
  reader.end();
  const { segments, version } = readLayout(layout);
  const offer = {
    task, model, round, isActive: mode === 1, isSparse: topology === 1, degree, threshold,
    committee, quorum, minimumCohort, population, weight, segments, layoutVersion: version,
    checkWords, application, authority, commitment,
  };
  requireConsistent(offer);
  must(suite === 0, "below_floor", "this client speaks the classic suite alone");
  return offer;
}

/** Refuse numbers that no session has, whatever a client's floors are. @param {Offer} offer */
function requireConsistent(offer) {
  const { task, isActive, isSparse, degree, threshold, committee, quorum, population, weight } = offer;
  const most = isSparse ? degree : population - 1;
  must(
    task.length >= 1 && population >= 2 && population <= 2 ** 20 &&
      offer.minimumCohort >= 2 && offer.minimumCohort <= population &&
      weight >= 1 && population * weight <= 2 ** 47 && offer.checkWords >= 8 && offer.checkWords <= 64 &&
      (isSparse || population <= 65535) &&
      (isSparse ? degree >= 2 && degree % 2 === 0 && degree <= Math.min(population - 1, 65535) : !degree) &&
      threshold >= 2 && threshold <= most,
    "not_canonical", "the offer is no configuration: a number is out of its range",
  );
  const hasAuthority = offer.authority.some(Boolean);
  must(
    isActive
      ? committee <= population && quorum >= 1 && quorum <= (committee || population) && hasAuthority
      : !committee && !quorum && !hasAuthority,
    "not_canonical", "committee, quorum and authority are not those of the mode",
  );
  let parts = 1;
  for (const { bits, length } of offer.segments) {
    const words = length + Math.max(offer.checkWords, Math.ceil(64 / bits));
    parts += Math.ceil((words * wordBytes(bits)) / SEGMENT);
  }
  must(parts <= MOST_PARTS, "not_canonical", "a layout has more values than the stream of one key masks");
}

/** @param {Uint8Array} layout */
function readLayout(layout) {
  const reader = new Reader(layout, 1);
  const count = reader.count(4, MOST.segments);
  must(count >= 1, "not_canonical", "a layout of no segments");
  const segments = reader.list(count, () => {
    const kind = reader.number(1);
    must(kind >= 1 && kind <= 3, "not_canonical", "a segment of an unknown kind");
    must(kind === 1, "below_floor", "this client sums rings alone, without fine bits");
    const [bits, length] = [reader.number(4), reader.number(8)];
    must(bits >= 1 && bits <= 64 && length >= 1, "not_canonical", "a segment that no ring has");
    return { bits, length };
  });
  const version = reader.take(DIGEST);
  reader.end();
  return { segments, version };
}

// --- The graph -------------------------------------------------------------------------------

/**
 * Who neighbours whom: everybody, or on a ring in a random order.
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
 * What a client knows of a neighbour.
 * @typedef {object} Neighbour
 * @property {Uint8Array} id @property {Uint8Array} channel @property {Uint8Array} mask
 * @property {Uint8Array} identity
 * @property {Uint8Array} channelSecret @property {Uint8Array} maskSecret
 */
/** @typedef {{root: Uint8Array, seed: Uint8Array, place: number}} Held */

/**
 * One client's part in one session. It answers each message once; a fault in an expected message
 * ends the session for it, and its secrets are overwritten.
 */
export class PairwiseClient {
  /** @type {Offer} */
  offer = /** @type {any} */ (undefined);
  channelRoot = NONE;
  maskRoot = NONE;
  selfMaskSeed = NONE;
  channel = NO_KEYS;
  mask = NO_KEYS;
  /** Digests: of the offer, and of the session that the roster makes of it. */
  attempt = NONE;
  context = NONE;
  seed = NONE;
  /** This client's own entry of the roster. */
  entry = NONE;
  /** The root over the entries that were delivered. */
  entries = NONE;
  /** @type {bigint[]} */
  ids = [];
  clients = 0;
  position = 0;
  /** @type {(at: number) => number[]} */
  graph = () => [];
  /** Positions: of neighbours, of those that shared, of neighbours among them. @type {number[]} */
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

  /**
   * @param {object} own
   * @param {bigint} own.id
   * @param {() => Words[] | Promise<Words[]>} own.input makes the vectors, after every check
   * @param {Identity} [own.identity] for active mode
   * @param {Partial<Floors>} [own.floors]
   * @param {number} [own.weight]
   * @param {import("./crypto.js").Coins} [own.coins]
   * @param {About} [own.about] what the session is about, as this client knows it
   */
  constructor({ id, input, identity, floors, weight = 1, coins = random, about = {} }) {
    this.id = id;
    this.me = integer(id, 8);
    this.input = input;
    this.identity = identity;
    this.floors = floorsOf(FLOORS, floors);
    this.weight = weight;
    this.coins = coins;
    this.about = about;
    /** @type {number} */
    this.expected = KIND.offer;
    this.hasLeft = false;
    this.ends = 0;
    /** By kind, the message that was answered and the answer. @type {Map<number, {message: string, answer: Uint8Array}>} */
    this.answered = new Map();
  }

  /**
   * The answer to a message: the same bytes again get the same answer, and others of its kind end the session.
   * @param {Uint8Array} message @returns {Promise<Uint8Array>}
   */
  async answer(message) {
    const kind = kindOf(message);
    const digest = hex(await sha256(message));
    const before = this.answered.get(kind);
    if (before && before.message === digest) return before.answer;
    if (before) {
      this.#end();
      throw new Refused("already_answered", `a second message of kind ${kind} differs from the first`);
    }
    must(kind === this.expected, "wrong_kind", `a message of kind ${kind} is not expected now`);
    this.expected = OVER;
    const { ends } = this;
    try {
      const { answer, next } = await this.#step(kind, message);
      // Another message may have ended the session meanwhile.
      if (this.hasLeft || ends !== this.ends) throw left();
      this.expected = next;
      this.answered.set(kind, { message: digest, answer });
      return answer;
    } catch (error) {
      const isOver = this.hasLeft || ends !== this.ends;
      this.#end();
      // Whatever failed because secrets were gone, the client has left.
      if (isOver) throw left();
      const isBelow = error instanceof Refused && OFFER_IS_REFUSED.includes(error.reason);
      if (kind === KIND.offer && isBelow) this.expected = KIND.offer;
      throw error;
    }
  }

  /** Answer nothing any more. */
  #end() {
    this.ends += 1;
    this.#clear();
    this.answered.clear();
    this.expected = OVER;
  }

  /** The answer to a message, and the kind that is expected next. @param {number} kind @param {Uint8Array} message */
  async #step(kind, message) {
    switch (kind) {
      case KIND.offer: return { answer: await this.#advertise(message), next: KIND.advertisedKeys };
      case KIND.advertisedKeys: return { answer: await this.#share(message), next: KIND.deliveredShares };
      case KIND.deliveredShares: {
        const answer = await this.#upload(message);
        return { answer, next: this.#isMember() ? KIND.survivors : KIND.request };
      }
      case KIND.survivors: return { answer: await this.#endorse(message), next: KIND.request };
      default: return { answer: await this.#unmask(message), next: OVER };
    }
  }

  /** Leave the session, also while an answer is under way; nothing is answered any more. */
  abort() {
    this.hasLeft = true;
    this.#end();
  }

  /** Whether this client certifies the survivors. */
  #isMember() {
    const { offer, seed, clients, position } = this;
    return offer.isActive && committeeOf(offer, seed, clients).has(position);
  }

  /** Overwrite this client's own secrets, and those that it shares with neighbours; keys of WebCrypto are forgotten. */
  #clearOwn() {
    for (const secret of [this.channelRoot, this.maskRoot, this.selfMaskSeed]) secret.fill(0);
    for (const { channelSecret, maskSecret } of this.neighbours.values()) {
      channelSecret.fill(0);
      maskSecret.fill(0);
    }
    this.channel = this.mask = NO_KEYS;
  }

  /** Overwrite everything that can be overwritten, and forget the rest. */
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

  /** A signature in active mode, else nothing. @param {string} label @param {...Uint8Array} parts */
  async #sign(label, ...parts) {
    if (!this.offer.isActive) return NONE;
    return /** @type {Identity} */ (this.identity).key.sign(label, ...parts);
  }

  // --- Round 0: advertise keys ---------------------------------------------------------------

  /** @param {Uint8Array} message */
  async #advertise(message) {
    const offer = readOffer(message);
    this.#requireAbout(offer);
    this.#requireFloors(offer);
    this.offer = offer;
    this.attempt = await hash("configuration", message);
    this.channelRoot = this.coins(KEY);
    this.maskRoot = fieldElement(this.coins);
    this.selfMaskSeed = fieldElement(this.coins);
    this.channel = await this.#derivedPair(this.channelRoot, "channel-x25519-key");
    this.mask = await this.#derivedPair(this.maskRoot, "mask-x25519-key");
    const commitment = await commit(
      "commitment-to-self-mask", [this.attempt, this.me], this.selfMaskSeed,
    );
    const keys = concat(this.channel.public, this.mask.public);
    const start = concat(header(KIND.advertisement), this.attempt.slice(0, TAG), this.me, keys);
    if (!offer.isActive) {
      this.entry = keys;
      return concat(start, commitment);
    }
    const { key, certificate } = /** @type {Identity} */ (this.identity);
    const signature = await this.#sign(
      "signed-advertisement", this.attempt, this.me, this.channel.public, this.mask.public, commitment,
    );
    const certified = concat(commitment, key.public, certificate, signature);
    this.entry = concat(keys, certified);
    return concat(start, certified);
  }

  /** Refuse a session about something else. @param {Offer} offer */
  #requireAbout(offer) {
    const { layout, layoutVersion, capacity } = this.about;
    const shape = JSON.stringify(offer.segments.map(({ bits, length }) => [bits, length]));
    must(
      (!layout || shape === JSON.stringify(layout)) &&
        (!layoutVersion || equal(offer.layoutVersion, layoutVersion)),
      "below_floor", "the offer has another layout than this client's values",
    );
    requireSubject(this.about, offer);
    must(
      capacity === undefined || offer.population * offer.weight <= capacity,
      "below_floor", "more clients than the codes have room for",
    );
  }

  /** @param {Offer} offer */
  #requireFloors(offer) {
    const { floors, identity } = this;
    const mode = offer.isActive ? "active" : "semi_honest";
    must(floors.modes.includes(mode), "below_floor", `${mode} mode is below a floor`);
    must(
      offer.minimumCohort >= floors.minimumCohort,
      "below_floor", `a cohort of ${offer.minimumCohort} is below a floor`,
    );
    must(
      offer.population <= floors.maximumPopulation, "below_floor", "the population is above a floor",
    );
    const degree = offer.isSparse ? offer.degree : offer.population - 1;
    must(degree <= floors.maximumDegree, "below_floor", `a degree of ${degree} is above a floor`);
    const bits = offer.segments.map((segment) => segment.bits);
    must(
      bits.every((width) => width >= floors.minimumModulusBits),
      "below_floor", "a ring is narrower than a floor",
    );
    const length = offer.segments.reduce((total, segment) => total + segment.length, 0);
    must(length <= floors.maximumLength, "below_floor", `${length} values are above a floor`);
    must(
      Number.isSafeInteger(this.weight) && this.weight >= 1 && this.weight <= offer.weight,
      "layout_mismatch", `a weight of ${this.weight} is not in 1..${offer.weight}`,
    );
    must(
      !offer.isActive || (identity && equal(offer.authority, identity.authority)),
      "parameter_out_of_range", "active mode takes a key, certified by the authority of the offer",
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
      const info = bind("channel-aead-key", me, neighbour.id, this.channel.public, neighbour.channel);
      const key = await derive(neighbour.channelSecret, context, info);
      const pair = concat(roots[i], seeds[i]);
      const sealed = await seal(key, integer(KIND.shares, 12), pair, this.#aeadHeader(me, neighbour.id));
      for (const secret of [key, pair]) secret.fill(0);
      if (!offer.isActive) return sealed;
      return concat(sealed, await this.#commitment(me, neighbour.id, i + 1, roots[i], seeds[i]));
    }));
    for (const share of [...roots, ...seeds]) share.fill(0);
    const leaves = entries.map((entry, i) => hash("shares-entry", this.#neighbour(near[i]).id, entry));
    const signature = await this.#sign(
      "signed-shares", context, me, integer(near.length, 4), await treeRoot(await Promise.all(leaves)),
    );
    return concat(header(KIND.shares), context.slice(0, TAG), signature, ...entries);
  }

  /** @param {Uint8Array} message */
  async #readRoster(message) {
    const { offer, attempt } = this;
    const reader = new Reader(message, KIND.advertisedKeys);
    must(equal(reader.take(TAG), attempt.slice(0, TAG)), "wrong_session", "another attempt");
    const list = reader.variable(MOST.id * offer.population);
    const root = reader.take(DIGEST);
    const opening = reader.take(DIGEST);
    const size = 2 * KEY + (offer.isActive ? DIGEST + KEY + 2 * SIGNATURE : 0);
    const entries = reader.list(reader.count(4, offer.population), () => reader.take(size));
    const nodes = reader.list(reader.count(4, offer.population), () => reader.take(DIGEST));
    reader.end();
    must(
      equal(await hash("graph-opening", opening), offer.commitment),
      "roster_invalid", "the graph's seed is not the one that was committed to",
    );
    this.ids = as("roster_invalid", () => idsOf(list, offer.population));
    this.clients = this.ids.length;
    must(
      this.clients >= offer.minimumCohort,
      "threshold_not_met", `${this.clients} advertisers are below the minimum cohort`,
    );
    const bits = PRIVACY_BITS[offer.isActive ? "active" : "semi_honest"];
    requireParameters(
      offer, this.clients, this.floors.assumedCorrupted, Math.max(this.floors.privacyBits, bits),
    );
    this.position = this.ids.indexOf(this.id);
    must(this.position >= 0, "roster_invalid", "this client is not on the list");
    const clients = integer(this.clients, 4);
    const roster = await hash("roster-root", clients, await hash("client-list", list), root);
    this.seed = await hash("graph-seed", attempt, roster, opening);
    this.context = await hash("session-context", attempt, roster, this.seed);
    this.graph = graphOf(offer, this.seed, this.clients);
    this.near = this.graph(this.position);
    must(entries.length === this.near.length, "roster_invalid", "other neighbours than the graph's");
    const leaves = new Map([[this.position, await hash("roster-entry", this.me, this.entry)]]);
    await Promise.all(this.near.map(async (position, i) => {
      leaves.set(position, await hash("roster-entry", integer(this.ids[position], 8), entries[i]));
    }));
    const proven = await as("roster_invalid", () => rootFrom(this.clients, leaves, nodes));
    must(equal(proven, root), "roster_invalid", "the entries are not those of the roster");
    await allOf(this.near.map(async (position, i) => {
      const id = integer(this.ids[position], 8);
      this.neighbours.set(position, await this.#readEntry(id, entries[i]));
    }));
    const own = [this.channel.public, this.mask.public];
    const others = [...this.neighbours.values()].flatMap(({ channel, mask, identity }) =>
      offer.isActive ? [channel, mask, identity] : [channel, mask],
    );
    if (offer.isActive) own.push(/** @type {Identity} */ (this.identity).key.public);
    const keys = [...own, ...others].map(hex);
    must(new Set(keys).size === keys.length, "public_key_reused", "one key stands twice");
  }

  /** @param {Uint8Array} id @param {Uint8Array} entry @returns {Promise<Neighbour>} */
  async #readEntry(id, entry) {
    const channel = entry.slice(0, KEY);
    const mask = entry.slice(KEY, 2 * KEY);
    const commitment = entry.slice(64, 96);
    const identity = entry.slice(96, 128);
    must(
      isCanonical(channel) && isCanonical(mask),
      "public_key_not_canonical", "a key of a neighbour is not in canonical form",
    );
    must(
      !isLowOrder(channel) && !isLowOrder(mask),
      "public_key_low_order", "a key of a neighbour is a point of low order",
    );
    if (this.offer.isActive) {
      await this.#requireCertified(id, identity, entry.slice(128, 192));
      await verify(
        identity, entry.slice(192), "signed-advertisement", this.attempt, id, channel, mask, commitment,
      );
    }
    return {
      id, channel, mask, identity,
      channelSecret: await agree(this.channel.own, channel),
      maskSecret: await agree(this.mask.own, mask),
    };
  }

  /** @param {Uint8Array} id @param {Uint8Array} key @param {Uint8Array} certificate */
  async #requireCertified(id, key, certificate) {
    const { authority } = /** @type {Identity} */ (this.identity);
    await verify(authority, certificate, "certificate", authority, id, key);
  }

  /** @param {number} position */
  #neighbour(position) {
    return /** @type {Neighbour} */ (this.neighbours.get(position));
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
    const masks = await this.#masks();
    const vectors = await this.#inputVectors();
    const packed = [];
    let first = 0;
    for (const { bits, vector } of vectors) {
      first = await addMasks(vector, bits, masks, first);
      packed.push(pack(vector, bits));
    }
    const digest = await sha256(concat(bind("upload-digest"), ...packed));
    const sharers = await this.#setDigest(this.sharers);
    const signature = await this.#sign("signed-view", this.context, this.me, sharers, digest);
    this.#clearOwn();
    return concat(header(KIND.maskedInput), this.context.slice(0, TAG), signature, ...packed);
  }

  /** @param {Uint8Array} message */
  async #readShares(message) {
    const { offer, context } = this;
    const reader = new Reader(message, KIND.deliveredShares);
    must(equal(reader.take(TAG), context.slice(0, TAG)), "wrong_session", "another session");
    const sharers = reader.set(this.clients);
    const peers = this.near.filter((position) => sharers.includes(position));
    const delivered = peers.map((position) => {
      const sealed = reader.take(SEALED);
      if (!offer.isActive) return { position, sealed };
      const commitment = reader.take(DIGEST);
      const signature = reader.take(SIGNATURE);
      const path = reader.list(reader.count(1, MOST.path), () => reader.take(DIGEST));
      return { position, sealed, commitment, signature, path };
    });
    reader.end();
    must(
      sharers.includes(this.position),
      "survivors_invalid", "the server says that this client shared nothing",
    );
    must(
      sharers.length >= offer.minimumCohort && peers.length >= offer.threshold,
      "threshold_not_met", "too few clients shared their keys",
    );
    this.sharers = sharers;
    this.peers = peers;
    const leaves = await allOf(delivered.map((entry) => this.#readDelivery(entry)));
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
    const bytes = commitment ? concat(sealed, commitment) : sealed;
    const leaf = await hash("shares-entry", me, bytes);
    if (commitment && signature && path) {
      const leaves = new Map([[place - 1, leaf]]);
      const root = await as("authentication_failed", () => rootFrom(dealt.length, leaves, path));
      const count = integer(dealt.length, 4);
      await verify(neighbour.identity, signature, "signed-shares", context, neighbour.id, count, root);
    }
    const pair = await this.#opened(neighbour, sealed);
    if (pair) {
      const [root, seed] = [pair.slice(0, KEY), pair.slice(KEY)];
      pair.fill(0);
      const isWhole = toBigInt(root) < PRIME && toBigInt(seed) < PRIME;
      const fits =
        isWhole &&
        (!commitment ||
          equal(await this.#commitment(neighbour.id, me, place, root, seed), commitment));
      if (fits) this.held.set(position, { root, seed, place });
    }
    return leaf;
  }

  /** The pair of shares of a neighbour; null if it does not open. @param {Neighbour} neighbour @param {Uint8Array} sealed */
  async #opened(neighbour, sealed) {
    const info = bind("channel-aead-key", neighbour.id, this.me, neighbour.channel, this.channel.public);
    const key = await derive(neighbour.channelSecret, this.context, info);
    try {
      return await open(key, integer(KIND.shares, 12), sealed, this.#aeadHeader(neighbour.id, this.me));
    } catch {
      return null;
    } finally {
      key.fill(0);
    }
  }

  /** The self mask, and the mask of every edge to a neighbour that shared. @returns {Promise<Mask[]>} */
  async #masks() {
    const { me, context } = this;
    const own = await expand(this.selfMaskSeed, bind("self-mask-key", context, me), 16);
    const edges = this.peers.map(async (position) => {
      const neighbour = this.#neighbour(position);
      const isLower = isLess(me, neighbour.id);
      const ids = isLower ? [me, neighbour.id] : [neighbour.id, me];
      const keys = isLower
        ? [this.mask.public, neighbour.mask]
        : [neighbour.mask, this.mask.public];
      const info = bind("pairwise-seed", ...ids, ...keys);
      const seed = await derive(neighbour.maskSecret, context, info);
      const key = await expand(seed, bind("pairwise-mask-key", context, ...ids), 16);
      seed.fill(0);
      return this.#mask(isLower ? -1 : 1, key);
    });
    return Promise.all([this.#mask(1, own), ...edges]);
  }

  /** @param {1 | -1} sign @param {Uint8Array} key which is overwritten @returns {Promise<Mask>} */
  async #mask(sign, key) {
    const imported = await streamKey(key);
    key.fill(0);
    return { sign, key: imported };
  }

  /** The input times the weight, and the weight, each with its check words. */
  async #inputVectors() {
    const { offer, weight } = this;
    const input = await this.input();
    must(
      input.length === offer.segments.length, "layout_mismatch", "the input has another layout",
    );
    const weightBits = BigInt(offer.population * offer.weight).toString(2).length;
    const segments = offer.segments.map(({ bits, length }, i) => {
      const values = input[i];
      must(
        values instanceof arrayOf(bits) && values.length === length,
        "layout_mismatch", `segment ${i} of the input has another length or type`,
      );
      scale(values, bits, weight);
      return { bits, values };
    });
    const last = arrayOf(weightBits).of(weightBits > 32 ? BigInt(weight) : weight);
    segments.push({ bits: weightBits, values: last });
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
    const reader = new Reader(message, KIND.survivors);
    must(equal(reader.take(TAG), this.context.slice(0, TAG)), "wrong_session", "another session");
    const sharers = reader.set(this.clients);
    const contributors = reader.set(this.clients);
    reader.end();
    this.#requireContributors(contributors);
    must(sharers.join() === this.sharers.join(), "survivors_invalid", "other sharers than before");
    this.signed = contributors;
    const statement = await this.#survivorStatement(this.me, contributors);
    const signature = await this.#sign("signed-survivors", ...statement);
    return concat(header(KIND.survivorSignature), this.context.slice(0, TAG), signature);
  }

  /** @param {number[]} contributors */
  #requireContributors(contributors) {
    must(
      contributors.every((position) => this.sharers.includes(position)) &&
        contributors.includes(this.position),
      "survivors_invalid", "contributors that did not share, or without this client",
    );
    must(
      contributors.length >= this.offer.minimumCohort,
      "threshold_not_met", `a sum of ${contributors.length} is below the minimum cohort`,
    );
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
    const { offer, context, me } = this;
    const contributors = await this.#readRequest(message);
    const holding = this.peers.filter((position) => this.held.has(position));
    const indices = holding.map((position) => this.peers.indexOf(position));
    const held = bitSet(indices, this.peers.length);
    const shares = concat(...(await Promise.all(holding.map(async (position) => {
      const { root, seed, place } = /** @type {Held} */ (this.held.get(position));
      const isIn = contributors.includes(position);
      const shown = isIn ? seed : root;
      if (!offer.isActive) return shown;
      const [name, other] = isIn
        ? /** @type {const} */ (["mask root", root])
        : /** @type {const} */ (["self-mask seed", seed]);
      const dealer = this.#neighbour(position).id;
      return concat(shown, await this.#shareDigest(name, dealer, me, place, other));
    }))));
    const signature = await this.#sign(
      "signed-unmasking", context, me, await this.#setDigest(contributors), this.entries, held, shares, NONE,
    );
    const answer = concat(header(KIND.unmasking), context.slice(0, TAG), signature, held, shares);
    this.#clear();
    return answer;
  }

  /** Read a request, and refuse it unless this very set may be unmasked. @param {Uint8Array} message */
  async #readRequest(message) {
    const { offer, context } = this;
    const reader = new Reader(message, KIND.request);
    must(equal(reader.take(TAG), context.slice(0, TAG)), "wrong_session", "another session");
    const contributors = reader.set(this.clients);
    const endorsements = reader.list(reader.count(4, this.clients), () => ({
      position: reader.number(4),
      key: reader.take(KEY),
      certificate: reader.take(SIGNATURE),
      signature: reader.take(SIGNATURE),
    }));
    const views = reader.list(reader.count(4, this.clients), () => ({
      upload: reader.take(DIGEST),
      signature: reader.take(SIGNATURE),
    }));
    reader.end();
    this.#requireContributors(contributors);
    must(
      !this.signed || this.signed.join() === contributors.join(),
      "survivors_invalid", "another set than the one that was signed",
    );
    const present = this.near.filter((position) => contributors.includes(position));
    must(present.length >= offer.threshold, "threshold_not_met", "too few neighbours contributed");
    if (offer.isActive) {
      await this.#requireQuorum(endorsements, contributors);
      await this.#requireViews(views, present);
    } else {
      must(!endorsements.length && !views.length, "trailing_bytes", "signatures in semi_honest mode");
    }
    return contributors;
  }

  /**
   * @param {{position: number, key: Uint8Array, certificate: Uint8Array, signature: Uint8Array}[]} endorsements
   * @param {number[]} contributors
   */
  async #requireQuorum(endorsements, contributors) {
    const committee = committeeOf(this.offer, this.seed, this.clients);
    const isOrdered = endorsements.every(
      ({ position }, i) =>
        committee.has(position) && (i === 0 || endorsements[i - 1].position < position),
    );
    must(
      isOrdered && endorsements.length >= this.offer.quorum,
      "quorum_not_met", "the committee does not certify these contributors",
    );
    await Promise.all(endorsements.map(async ({ position, key, certificate, signature }) => {
      const id = integer(this.ids[position], 8);
      const known = this.neighbours.get(position);
      await this.#requireCertified(id, key, certificate);
      must(!known || equal(known.identity, key), "quorum_not_met", "another identity than before");
      const statement = await this.#survivorStatement(id, contributors);
      await verify(key, signature, "signed-survivors", ...statement);
    }));
  }

  /** @param {{upload: Uint8Array, signature: Uint8Array}[]} views @param {number[]} present */
  async #requireViews(views, present) {
    must(views.length === present.length, "quorum_not_met", "a neighbour's view is missing");
    const sharers = await this.#setDigest(this.sharers);
    await Promise.all(views.map(({ upload, signature }, i) => {
      const { identity, id } = this.#neighbour(present[i]);
      return verify(identity, signature, "signed-view", this.context, id, sharers, upload);
    }));
  }
}
