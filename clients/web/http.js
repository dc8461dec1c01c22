/**
 * One client's part in one sum over HTTP.
 * Implements secagg/transport/README.md.
 * @module
 */
import { SigningKey, isStrong, random, verify } from "./crypto.js";
import { applicationDigest, encode, layoutVersion, planOf, readTerms } from "./encoding.js";
import { RoundLedger } from "./ledger.js";
import { HOLDER_FLOORS, readOffer, requireHolderFloors, upload } from "./one_message.js";
import { FLOORS, PairwiseClient } from "./pairwise.js";
import { as, equal, hex, integer, json, must, requireSubject, unhex, utf8 } from "./wire.js";

/** @typedef {import("./pairwise.js").Identity} Identity */
/**
 * What a server says of the session that it holds.
 * @typedef {object} Card
 * @property {string} session @property {string} protocol @property {string} mode
 * @property {string} task @property {bigint} round @property {string} text the terms as they stand
 * @property {import("./encoding.js").Terms} terms
 */
/**
 * @typedef {object} Options
 * @property {Identity} [identity] a certified key, for active mode
 * @property {bigint} [seat] the name of a client without a key; by default the server gives one
 * @property {string} [task]
 * @property {Partial<import("./pairwise.js").Floors & import("./one_message.js").HolderFloors>} [floors]
 * @property {string} [after] the name of a session that was before
 * @property {RoundLedger} [ledger]
 * @property {AbortSignal} [signal]
 * @property {number} [patience] seconds to wait for a server that is lost
 * @property {(stage: Stage) => void} [onStage]
 * @property {(card: Card) => void} [onCard]
 */
/** @typedef {{number: number, answer: Uint8Array, received: number, milliseconds: number}} Stage */
/**
 * @typedef {object} Outcome
 * @property {boolean} isReleased @property {string} sentence of the server @property {Card} card
 * @property {{mean: number[], count: number} | null} result where the server shows it
 * @property {number} clamped how many values were out of range
 */

/** The session ended for this client; the sentence says why. */
export class Left extends Error {}

const PROTOCOLS = ["pairwise", "one-message"];
/** Ask again after these: the server is busy, stopping, or behind a proxy that lost it. */
const AGAIN = [408, 429, 500, 502, 503, 504];
const [NOTHING_YET, LATE, OVER] = [204, 409, 410];
const PAUSE = { first: 50, longest: 5000 };

/**
 * Take part in a server's sum once: wait for a session, answer its stages, and wait for its end.
 * @param {string} url @param {ArrayLike<number>} values @param {Options} [options]
 * @returns {Promise<Outcome>}
 */
export async function contribute(url, values, options = {}) {
  const { task = "sum", ledger = new RoundLedger(), onCard = () => {} } = options;
  const server = new Server(url, options);
  const card = await server.card(options.after ?? "");
  must(
    PROTOCOLS.includes(card.protocol) && card.task === task,
    "below_floor", "the server sums something else, or by another protocol",
  );
  onCard(card);
  const id = await server.join(card, options);
  /** @type {{clamped: number}} */
  const counted = { clamped: 0 };
  const make = async (/** @type {Uint8Array} */ model) => {
    await ledger.charge(task, card.round, model);
    const { codes, clamped } = encode(values, card.terms);
    counted.clamped = clamped;
    return codes;
  };
  const client = card.protocol === "pairwise"
    ? await pairwiseClient(card, id, options, make)
    : oneMessageClient(card, id, options, make);
  try {
    const { isReleased, sentence, result } = await exchange(server, client, options);
    return { isReleased, sentence, result, card, clamped: counted.clamped };
  } catch (error) {
    server.leave();
    throw error;
  }
}

// --- The client of each protocol -------------------------------------------------------------

/** @typedef {{answer: (message: Uint8Array) => Promise<Uint8Array>}} Client */
/** @typedef {(model: Uint8Array) => Promise<import("./ring.js").Words>} Make */

/** @param {Card} card @param {bigint} id @param {Options} options @param {Make} make @returns {Promise<Client>} */
async function pairwiseClient(card, id, { identity, floors }, make) {
  const { ringBits, capacity } = planOf(card.terms);
  /** @type {PairwiseClient} */
  const client = new PairwiseClient({
    id,
    identity,
    floors: { ...FLOORS, ...floors, modes: identity ? ["active"] : ["semi_honest"] },
    about: {
      ...(await subjectOf(card)), capacity, layout: [[ringBits, card.terms.values]],
      layoutVersion: await layoutVersion(card.terms),
    },
    input: async () => [await make(client.offer.model)],
  });
  return client;
}

/** @param {Card} card @param {bigint} id @param {Options} options @param {Make} make @returns {Client} */
function oneMessageClient(card, id, { identity, floors }, make) {
  const { ringBits, capacity } = planOf(card.terms);
  return {
    answer: async (message) => {
      const offer = await readOffer(message);
      must(
        offer.isActive === Boolean(identity),
        "below_floor", "one message in active mode takes a key, and in semi_honest mode none",
      );
      const authority = identity ? identity.authority : new Uint8Array(32);
      requireHolderFloors(offer, { ...HOLDER_FLOORS, ...floors }, Date.now() / 1000, authority);
      requireSubject(await subjectOf(card), offer);
      const [segment, ...others] = offer.segments;
      must(
        others.length === 1 && segment.ringBits === ringBits &&
          segment.length === card.terms.values && offer.capacityWeight <= capacity,
        "below_floor", "the offer has another layout than the card's terms",
      );
      const codes = await make(offer.model);
      const shift = 32 - ringBits;
      const signed = Int32Array.from(/** @type {Uint32Array} */ (codes), (code) => (code << shift) >> shift);
      return upload(offer, { id, vectors: [signed], identity });
    },
  };
}

/** What an offer has to be about. @param {Card} card */
const subjectOf = async ({ task, round, text, terms }) =>
  ({ task: utf8(task), round, application: await applicationDigest(text, terms) });

/** Answer every stage; a stage that is asked for again gets the same bytes. @param {Server} server @param {Client} client @param {Options} options */
async function exchange(server, client, { onStage = () => {}, signal }) {
  let stage = -1;
  let answered = new Uint8Array(0);
  let kept = new Uint8Array(0);
  for (;;) {
    signal?.throwIfAborted();
    const message = await server.ask("GET", "/message");
    if (message.status === NOTHING_YET) {
      await server.pause(PAUSE.first);
      continue;
    }
    if (message.stage === null) return endOf(message);
    if (message.stage !== stage) {
      must(!equal(message.bytes, answered), "wrong_kind", "a stage has the message of the one before");
      answered = message.bytes;
      const began = performance.now();
      kept = await client.answer(message.bytes);
      stage = message.stage;
      onStage({
        number: stage, answer: kept, received: message.bytes.length,
        milliseconds: performance.now() - began,
      });
    } else {
      await server.pause(4 * PAUSE.first);
    }
    await server.ask("POST", `/answers/${stage}`, kept);
  }
}

/** How a session ended, as its server says. @param {Reply} reply */
function endOf({ status, bytes, isJson }) {
  const text = new TextDecoder().decode(bytes).trim();
  if (!isJson) return { isReleased: status === 200, sentence: text, result: null };
  const { sentence, mean, count } = JSON.parse(text);
  const isResult = Array.isArray(mean) && Number.isSafeInteger(count);
  return { isReleased: status === 200, sentence: String(sentence), result: isResult ? { mean, count } : null };
}

// --- Cards -----------------------------------------------------------------------------------

/** Read a card, and refuse what is none. @param {string} text @returns {Card} */
export function readCard(text) {
  const { session, protocol, mode, task, round_number, answer_bytes, terms } = json(text, "not_canonical");
  const isText = (/** @type {unknown} */ value) => typeof value === "string" && !/\p{C}/u.test(value);
  must(
    [session, protocol, mode, task, round_number, terms].every(isText) && /^[0-9a-f]{32}$/.test(session),
    "not_canonical", "the card is no card of a session",
  );
  must(
    /^(0|[1-9][0-9]{0,18})$/.test(round_number) && BigInt(round_number) < 1n << 63n &&
      Number.isInteger(answer_bytes) && answer_bytes > 0,
    "not_canonical", "the card has no round, or no longest answer",
  );
  json(terms, "not_canonical");
  return { session, protocol, mode, task, round: BigInt(round_number), text: terms, terms: readTerms(terms) };
}

// --- Requests --------------------------------------------------------------------------------

/** @typedef {{status: number, bytes: Uint8Array, stage: number | null, isJson: boolean}} Reply */

/** The Authorization of a client that has a key. @param {string} session @param {Pick<Identity, "id" | "key">} identity */
export async function authorizationOf(session, { id, key }) {
  return `Secagg ${id}:${hex(await key.sign("http-proof", unhex(session), integer(id, 8)))}`;
}

/** A server, as one client of one session asks it. */
class Server {
  /** @param {string} url @param {Options} options */
  constructor(url, { patience = 120, signal }) {
    this.url = url.replace(/\/$/, "");
    this.patience = patience;
    this.signal = signal;
    this.authorization = "";
    this.path = "";
    this.spread = 0.5 + Math.random();
  }

  /** Wait; each client's pauses differ. @param {number} milliseconds */
  pause(milliseconds) {
    return new Promise((resolve) => setTimeout(resolve, milliseconds * this.spread));
  }

  /** The session that runs, or the next one. @param {string} after @returns {Promise<Card>} */
  async card(after) {
    const query = after ? `?after=${encodeURIComponent(after)}` : "";
    for (;;) {
      const reply = await this.ask("GET", `/v1/session${query}`);
      if (reply.status === NOTHING_YET) continue;
      return readCard(new TextDecoder().decode(reply.bytes));
    }
  }

  /** Prove who this is, or take a seat. @param {Card} card @param {Options} options */
  async join(card, { identity, seat }) {
    this.path = `/v1/sessions/${card.session}`;
    if (identity) {
      this.authorization = await authorizationOf(card.session, identity);
      return identity.id;
    }
    const proof = hex(random(64));
    if (seat === undefined) {
      const reply = await this.ask("POST", "/seats", utf8(proof));
      const text = new TextDecoder().decode(reply.bytes);
      must(reply.status === 201 && /^[0-9]{1,20}$/.test(text), "not_canonical", "no seat was given");
      seat = BigInt(text);
    }
    this.authorization = `Secagg ${seat}:${proof}`;
    return seat;
  }

  /**
   * One request, tried again where that can help.
   * @param {string} method @param {string} path @param {Uint8Array} [body] @returns {Promise<Reply>}
   */
  async ask(method, path, body) {
    let began = Date.now();
    let pause = PAUSE.first;
    let why = "";
    for (;;) {
      this.signal?.throwIfAborted();
      try {
        const response = await this.#fetched(method, path, body);
        const { status } = response;
        const stage = response.headers.get("secagg-stage");
        const bytes = new Uint8Array(await response.arrayBuffer());
        if (!AGAIN.includes(status)) {
          const isWrong = status >= 300 && status !== LATE && status !== OVER;
          if (isWrong) throw new Left(`${status}: ${new TextDecoder().decode(bytes.slice(0, 400))}`);
          const isJson = response.headers.get("content-type")?.startsWith("application/json") ?? false;
          return { status, bytes, isJson, stage: stage === null ? null : Number(stage) };
        }
        why = `status ${status}`;
        if (status === 429) began = Date.now();
      } catch (error) {
        if (error instanceof Left) throw error;
        this.signal?.throwIfAborted();
        why = String(error);
      }
      if (Date.now() - began > 1000 * this.patience) throw new Left(`the server is lost: ${why}`);
      await this.pause(pause);
      pause = Math.min(2 * pause, PAUSE.longest);
    }
  }

  /** @param {string} method @param {string} path @param {Uint8Array} [body] */
  #fetched(method, path, body) {
    const timeout = AbortSignal.timeout(60_000);
    /** @type {RequestInit} */
    const init = {
      method,
      body: /** @type {BodyInit | undefined} */ (body),
      headers: this.authorization ? { authorization: this.authorization } : {},
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
      signal: this.signal ? AbortSignal.any([timeout, this.signal]) : timeout,
    };
    const place = path.startsWith("/v1/") ? path : this.path + path;
    return fetch(this.url + place, init);
  }

  /** Say that this client is gone; whether that arrives makes no difference to it. */
  leave() {
    const headers = { authorization: this.authorization };
    fetch(`${this.url}${this.path}/client`, { method: "DELETE", headers, keepalive: true }).catch(() => {});
  }
}

// --- Keys ------------------------------------------------------------------------------------

/**
 * The identity in a client's key file, or in a link of invitation that holds one.
 * @param {string} text @returns {Promise<Identity>}
 */
export async function identityOf(text) {
  const file = json(text, "parameter_out_of_range");
  const digits = /"id":\s*([0-9]{1,20})\s*[,}]/.exec(text);
  must(
    /^secagg\/[a-z]+\/1$/.test(file.format) && file.kind === "client" && digits &&
      HEX.every(([name, size]) => typeof file[name] === "string" && file[name].length === size),
    "parameter_out_of_range", "this is not a client's key file",
  );
  const id = BigInt(digits[1]);
  must(id < 1n << 64n, "parameter_out_of_range", "the key file has no id");
  return as("parameter_out_of_range", async () => {
    const [seed, certificate, authority] = HEX.map(([name]) => unhex(file[name]));
    const key = await SigningKey.of(seed);
    seed.fill(0);
    must(isStrong(key.public), "authentication_failed", "the key is weak");
    await verify(authority, certificate, "certificate", authority, integer(id, 8), key.public);
    return { id, key, certificate, authority };
  });
}

/** Fields of a key file, and how many digits each has. */
const HEX = /** @type {const} */ ([["seed", 64], ["certificate", 128], ["authority", 64]]);
