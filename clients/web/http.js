/**
 * One client's part in one sum over HTTP.
 * Implements secagg/transport/README.md.
 * @module
 */
import { SigningKey, random, requireCertified, requireStanding, sha256 } from "./crypto.js";
import { applicationDigest, encode, layoutOf, layoutVersion, planOf, readTerms } from "./encoding.js";
import { RoundLedger } from "./ledger.js";
import { HOLDER_POLICY, readOffer, requireHolderPolicy, requireReceipts, upload } from "./one_message.js";
import { POLICY, PairwiseClient } from "./pairwise.js";
import { policyOf } from "./thresholds.js";
import {
  FORM, Refused, as, concat, equal, hash, hex, integer, json, must, requireForm, requireSubject, unhex, utf8,
} from "./wire.js";

/** @typedef {import("./pairwise.js").Identity} Identity */
/** @typedef {import("./pairwise.js").Policy & import("./one_message.js").HolderPolicy} Policy */
/** A server's description of its session. @typedef {ReturnType<typeof readDescription>} SessionDescription */
/**
 * @typedef {object} Options
 * @property {Identity} [identity] a certified key, for active mode
 * @property {bigint} [seat] the id of a client without a key; by default the server assigns one
 * @property {string} [task]
 * @property {Partial<Policy>} [policy]
 * @property {readonly string[]} [protocols] by default all that are implemented here
 * @property {string} [after] the name of the previous session
 * @property {RoundLedger} [ledger]
 * @property {AbortSignal} [signal]
 * @property {number} [patience] seconds to wait for a lost server
 * @property {(stage: Stage) => void} [onStage]
 * @property {(description: SessionDescription, isFull: boolean) => void} [onDescription] full: the client waits for another session
 * @property {(progress: Progress) => void} [onProgress] called occasionally while the client waits for others
 */
/** @typedef {{number: number, answer: Uint8Array, received: number, milliseconds: number}} Stage */
/** Number of present clients, and seconds until the open stage closes. @typedef {{present: number, secondsLeft: number | null}} Progress */
/**
 * @typedef {object} Outcome
 * @property {boolean} isReleased whether, according to the server, a sum with this client's values was released
 * @property {string} sentence of the server @property {SessionDescription} description
 * @property {{mean: number[], count: number} | null} result if the server shows it
 * @property {number} clamped number of values out of range
 */

/** The session ended for this client, for the reason in the sentence. */
export class Left extends Error {}

/** The default policy of each protocol. @type {Record<string, any>} */
const USUAL = Object.freeze({ pairwise: POLICY, "one-message": HOLDER_POLICY });
/** Retry after these: the server is busy, stopping, or behind a proxy that lost it. */
const AGAIN = [408, 429, 500, 502, 503, 504];
const [NOTHING_YET, FULL, LATE, OVER] = [204, 403, 409, 410];
const PAUSE = { first: 50, longest: 5000, progress: 2000 };
/** After this many milliseconds, the server held the request back, and the next one needs no pause. */
const RESTED = 2000;
/** Maximum bytes of a message, of any other answer, and of a displayed sentence. */
const MOST = { message: 2 ** 26, other: 2 ** 20, sentence: 400 };
/** Maximum milliseconds of a request, and minimum bytes of its body per millisecond. */
const [PATIENCE, SLOWEST] = [60_000, 16];
const NOT_MADE = -1;
/** Hosts that name this machine. */
export const NEAR = ["localhost", "127.0.0.1", "[::1]"];

/**
 * Take part in a server's sum once: wait for a session with a free seat, answer its stages, and wait for its end.
 * @param {string} url @param {ArrayLike<number>} values @param {Options} [options]
 * @returns {Promise<Outcome>}
 */
export async function contribute(url, values, options = {}) {
  // A copy, because the caller may keep training: the ledger must spend the values that are sent.
  const given = Float64Array.from(values);
  const { task = "sum", ledger = new RoundLedger(), identity, onDescription = () => {} } = options;
  const server = new Server(url, options);
  // Without a key, the browser is the client; a client with a key never sends an update twice, even with a new key.
  const name = `${identity ? identity.id : ""}:${task}`;
  const update = identity ? hex(await hash("spent-values", new Uint8Array(given.buffer))) : "";
  let description = await server.description(options.after ?? "", options.task ?? "");
  /** @type {bigint | null} */
  let id = null;
  for (;;) {
    if (description.form !== FORM && identity && description.task === task) {
      // The proof tells the operator which clients the form excludes; a server of another task must not get it.
      await server.join(description, options);
      server.leave();
    }
    requireForm(description.form);
    requireWanted(description, given, options);
    await ledger.requireOpen(name, { round: description.round, update });
    id = await server.join(description, options);
    onDescription(description, id === null);
    if (id !== null) break;
    await server.rest();
    description = await server.description(description.session, options.task ?? "");
  }
  let clamped = NOT_MADE;
  const make = async (/** @type {bigint | undefined} */ epoch) => {
    await ledger.charge(name, { round: description.round, update, epoch });
    const encoded = encode(given, description.terms);
    clamped = encoded.clamped;
    return encoded.codes;
  };
  const client = description.protocol === "pairwise"
    ? await pairwiseClient(description, id, options, make)
    : oneMessageClient(description, id, options, make);
  const watch = watched(server, options);
  try {
    const end = { ...endOf(await exchange(server, client, options), description), description };
    if (clamped !== NOT_MADE) return { ...end, clamped };
    return { ...end, isReleased: false, sentence: `without this client: ${end.sentence}`, clamped: 0 };
  } catch (error) {
    server.leave();
    throw error;
  } finally {
    watch.end();
    client.abort();
  }
}

/** Report the session's progress occasionally, and leave it with the page. @param {Server} server @param {Options} options */
function watched(server, { onProgress }) {
  const gone = () => server.leave();
  const timer = onProgress && setInterval(() => void server.progress().then((now) => now && onProgress(now)), PAUSE.progress);
  globalThis.addEventListener?.("pagehide", gone);
  return {
    end: () => {
      clearInterval(timer);
      globalThis.removeEventListener?.("pagehide", gone);
    },
  };
}

/** Refuse a session that does not fit this client. @param {SessionDescription} description @param {ArrayLike<number>} values @param {Options} options */
function requireWanted(description, values, { task = "sum", protocols = Object.keys(USUAL), identity, policy: own }) {
  const { protocol, terms } = description;
  const isSpoken = Object.hasOwn(USUAL, protocol) && protocols.includes(protocol);
  must(isSpoken, "below_floor", `this client does not support the protocol ${protocol.slice(0, 40)}`);
  must(description.task === task, "below_floor", "the server sums something else");
  must(
    description.mode === (identity ? "active" : "semi_honest"),
    "below_floor", "clients with a key need active mode, and clients without one semi_honest mode",
  );
  const sentence = `this sum has ${terms.values} values, but this client has ${values.length}`;
  must(values.length === terms.values, "layout_mismatch", sentence);
  const policy = /** @type {any} */ (policyOf(USUAL[protocol], own));
  const most = policy.maximumPopulation ?? policy.maximumCapacity;
  must(
    terms.clients >= policy.minimumCohort && terms.clients <= most && terms.values <= policy.maximumLength,
    "below_floor", `a sum of ${terms.clients} clients, or of ${terms.values} values, exceeds this client's policy`,
  );
}

// --- The client of each protocol -------------------------------------------------------------

/** @typedef {{answer: (message: Uint8Array) => Promise<Uint8Array>, abort: () => void}} Client */
/** @typedef {(epoch?: bigint) => Promise<Uint32Array>} Make */

/** @param {SessionDescription} description @param {bigint} id @param {Options} options @param {Make} make @returns {Promise<Client>} */
async function pairwiseClient(description, id, { identity, policy, ledger = new RoundLedger() }, make) {
  const { ringBits, capacity } = planOf(description.terms);
  return new PairwiseClient({
    id,
    identity,
    policy: { ...policy, modes: identity ? ["active"] : ["semi_honest"] },
    seen: seenBy(ledger),
    about: {
      ...(await subjectOf(description)), capacity, layout: [[ringBits, description.terms.values]],
      layoutVersion: await layoutVersion(description.terms),
    },
    input: async () => [await make()],
  });
}

/** @param {SessionDescription} description @param {bigint} id @param {Options} options @param {Make} make @returns {Client} */
function oneMessageClient(description, id, { identity, policy, ledger = new RoundLedger() }, make) {
  const { ringBits, capacity } = planOf(description.terms);
  const authority = identity ? identity.authority : new Uint8Array(32);
  return {
    abort: () => {},
    answer: async (message) => {
      const offer = await readOffer(message, authority);
      must(
        offer.isActive === Boolean(identity),
        "below_floor", "one message needs a key in active mode, and none in semi_honest mode",
      );
      const [own, now] = [policyOf(HOLDER_POLICY, policy), () => Date.now() / 1000];
      requireHolderPolicy(offer, own, now(), authority);
      requireSubject(await subjectOf(description), offer);
      await requireReceipts(offer);
      const [segment, ...others] = offer.segments;
      must(
        equal(offer.layout, await layoutOf(description.terms)) && others.length === 1 &&
          segment.ringBits === ringBits && segment.length === description.terms.values && !segment.bounds &&
          offer.capacity <= capacity,
        "below_floor", "the offer's layout or bounds differ from the session description's terms",
      );
      if (identity) await requireStanding(offer.standing, identity, { policy: own, seen: seenBy(ledger), now });
      const signed = new Int32Array((await make(offer.epoch)).buffer);
      const shift = 32 - ringBits;
      for (let i = 0; i < signed.length; i++) signed[i] = (signed[i] << shift) >> shift;
      return upload(offer, { id, vectors: [signed], identity });
    },
  };
}

/** Returns a function that remembers standings in a ledger. @param {RoundLedger} ledger */
const seenBy = (ledger) => (/** @type {string} */ authority, /** @type {bigint} */ number, /** @type {string} */ digest) =>
  ledger.see(authority, number, digest);

/** The subject that an offer must have. These values do not come from a model. @param {SessionDescription} description */
const subjectOf = async ({ task, round, text, terms }) => ({
  task: utf8(task), round, model: await sha256(new Uint8Array(0)),
  application: await applicationDigest(text, terms),
});

/** Answer every stage; a repeated stage gets the same bytes. @param {Server} server @param {Client} client @param {Options} options */
async function exchange(server, client, { onStage = () => {} }) {
  let stage = -1;
  let [answered, kept] = [new Uint8Array(0), new Uint8Array(0)];
  for (;;) {
    const message = await server.ask("GET", "/message");
    if (message.status === NOTHING_YET) {
      await server.rest();
      continue;
    }
    if (message.stage === null) return message;
    must(message.stage >= stage, "wrong_kind", "a stage was requested after a later one");
    if (message.stage !== stage) {
      must(!equal(message.bytes, answered), "wrong_kind", "a stage repeats the message of the previous one");
      answered = message.bytes;
      const began = performance.now();
      kept = await client.answer(answered);
      stage = message.stage;
      const milliseconds = performance.now() - began;
      onStage({ number: stage, answer: kept, received: answered.length, milliseconds });
    } else {
      await server.rest();
    }
    await server.ask("POST", `/answers/${stage}`, kept);
  }
}

/** The end of a session according to its server. @param {Reply} reply @param {SessionDescription} description */
function endOf({ status, bytes, isJson }, { terms }) {
  const isReleased = status === 200;
  if (!isJson) return { isReleased, sentence: sentenceOf(bytes), result: null };
  const { sentence, mean, count } = json(new TextDecoder().decode(bytes), "not_canonical");
  const isMean = Array.isArray(mean) && mean.length === terms.values && mean.every(Number.isFinite);
  const result = isMean && Number.isSafeInteger(count) ? { mean, count } : null;
  return { isReleased, sentence: sentenceOf(utf8(String(sentence))), result };
}

/** A server's text as one short line. @param {Uint8Array} bytes */
function sentenceOf(bytes) {
  const text = new TextDecoder().decode(bytes.slice(0, MOST.sentence));
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, " ").trim();
}

// --- Session descriptions -----------------------------------------------------------------------------------

/** Fields of a session description that this client knows. */
const KNOWN = ["session", "protocol", "mode", "task", "round_number", "answer_bytes", "terms", "must_know", "form"];

/** Read a session description; unknown fields are ignored unless the description requires them. @param {string} text */
export function readDescription(text) {
  const description = json(text, "not_canonical");
  const { session, protocol, mode, task, round_number, answer_bytes, terms, must_know = [], form } = description;
  must(Array.isArray(must_know), "not_canonical", "this is not a session description");
  must(
    must_know.every((/** @type {any} */ name) => KNOWN.includes(name)),
    "wrong_version", "this session needs a newer client: get the server's version",
  );
  const texts = { session, protocol, mode, task, round_number, terms };
  const areTexts = Object.values(texts).every((value) => typeof value === "string" && !/\p{C}/u.test(value));
  must(areTexts && /^[0-9a-f]{32}$/.test(session), "not_canonical", "this is not a session description");
  must(
    /^(0|[1-9][0-9]{0,18})$/.test(round_number) && BigInt(round_number) < 1n << 63n &&
      [answer_bytes, form].every((value) => Number.isInteger(value) && value > 0),
    "not_canonical", "the session description has no round, longest answer or form",
  );
  json(terms, "not_canonical");
  /** @type {Record<"session" | "protocol" | "mode" | "task" | "text", string>} The text is that of the terms, unchanged. */
  const said = { session, protocol, mode, task, text: terms };
  return { ...said, shown: utf8(text), form, round: BigInt(round_number), terms: readTerms(terms) };
}

// --- Requests --------------------------------------------------------------------------------

/** @typedef {{status: number, bytes: Uint8Array, stage: number | null, isJson: boolean}} Reply */

/** The form that this client supports, at the start of its proof. */
const SPOKEN = Uint8Array.of(FORM);

/** The Authorization header of a client with a key, for a session. @param {Uint8Array} shown its description @param {Pick<Identity, "id" | "key">} identity */
export async function authorizationOf(shown, { id, key }) {
  const signature = await key.sign("http-proof", shown, integer(id, 8), SPOKEN);
  return `Secagg ${id}:${hex(concat(SPOKEN, signature))}`;
}

/** Sends one client's requests of one session to a server. */
class Server {
  /** @param {string} url @param {Options} options */
  constructor(url, { patience = 120, signal }) {
    const { protocol, hostname } = new URL(url);
    must(
      protocol === "https:" || (protocol === "http:" && NEAR.includes(hostname)),
      "below_floor", "answers would be sent in the clear; use an https:// address",
    );
    this.url = url.replace(/\/$/, "");
    this.patience = patience;
    this.signal = signal;
    this.authorization = "";
    this.path = "";
    this.spread = 0.5 + Math.random();
    this.rested = Date.now();
    this.rests = PAUSE.first / 2;
  }

  /** Pause after a request without news, longer each time unless the server held the request back. */
  async rest() {
    const isQuick = Date.now() - this.rested < RESTED;
    this.rests = isQuick ? Math.min(2 * this.rests, PAUSE.longest) : PAUSE.first;
    await this.pause(this.rests);
    this.rested = Date.now();
  }

  /** Wait; each client's pauses differ. @param {number} milliseconds */
  pause(milliseconds) {
    return new Promise((resolve) => setTimeout(resolve, milliseconds * this.spread));
  }

  /** The task's current session, or the next one. @param {string} after @param {string} task @returns {Promise<SessionDescription>} */
  async description(after, task) {
    const asked = Object.entries({ task, after }).filter(([, value]) => value);
    const query = asked.length ? `?${new URLSearchParams(asked)}` : "";
    for (;;) {
      const reply = await this.ask("GET", `/v1/session${query}`);
      if (reply.status === NOTHING_YET) {
        await this.rest();
        continue;
      }
      return readDescription(new TextDecoder().decode(reply.bytes));
    }
  }

  /** The id of this client's key or seat; null if no seat is free. @param {SessionDescription} description @param {Options} options */
  async join(description, { identity, seat }) {
    this.path = `/v1/sessions/${description.session}`;
    if (identity) {
      this.authorization = await authorizationOf(description.shown, identity);
      return identity.id;
    }
    const proof = hex(concat(SPOKEN, random(64)));
    if (seat === undefined) {
      const { status, bytes } = await this.ask("POST", "/seats", utf8(proof));
      if (status === FULL || status === OVER) return null;
      const text = sentenceOf(bytes);
      const isSeat = status === 201 && /^[0-9]{1,20}$/.test(text) && BigInt(text) < 1n << 64n;
      must(isSeat, "not_canonical", "the server assigned no seat");
      seat = BigInt(text);
    }
    this.authorization = `Secagg ${seat}:${proof}`;
    return seat;
  }

  /**
   * Send one request, and retry if that can help.
   * @param {string} method @param {string} path @param {Uint8Array} [body] @returns {Promise<Reply>}
   */
  async ask(method, path, body) {
    let began = Date.now();
    let pause = PAUSE.first;
    let why = "";
    for (;;) {
      this.signal?.throwIfAborted();
      try {
        const timeout = AbortSignal.timeout(PATIENCE + Math.ceil((body ?? "").length / SLOWEST));
        const signal = this.signal ? AbortSignal.any([timeout, this.signal]) : timeout;
        const response = await this.#fetched(method, path, { body: /** @type {BodyInit | undefined} */ (body), signal });
        const { status } = response;
        const stage = response.headers.get("secagg-stage");
        const isMessage = method === "GET" && path === "/message";
        const bytes = await bodyOf(response, isMessage ? MOST.message : MOST.other);
        if (!AGAIN.includes(status)) {
          const isKnown = status < 300 || status === LATE || status === OVER;
          const isWrong = !isKnown && !(status === FULL && path === "/seats");
          if (isWrong) throw new Left(`${status}: ${sentenceOf(bytes)}`);
          must(!stage || /^[0-9]{1,3}$/.test(stage), "not_canonical", "the message has no stage");
          const isJson = response.headers.get("content-type")?.startsWith("application/json") ?? false;
          return { status, bytes, isJson, stage: stage ? Number(stage) : null };
        }
        why = `status ${status}`;
        if (status === 429) began = Date.now();
      } catch (error) {
        if (error instanceof Left || error instanceof Refused) throw error;
        this.signal?.throwIfAborted();
        why = String(error);
      }
      if (Date.now() - began > 1000 * this.patience) throw new Left(`the server is lost: ${why}`);
      await this.pause(pause);
      pause = Math.min(2 * pause, PAUSE.longest);
    }
  }

  /**
   * Send a request with only these fields, and only to this server.
   * @param {string} method @param {string} path @param {RequestInit} more
   */
  #fetched(method, path, more) {
    return fetch(this.url + (path.startsWith("/v1/") ? path : this.path + path), {
      method,
      headers: this.authorization ? { authorization: this.authorization } : {},
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      referrerPolicy: "no-referrer",
      ...more,
    });
  }

  /** The session's progress; null if unknown. @returns {Promise<Progress | null>} */
  async progress() {
    try {
      const signal = AbortSignal.timeout(PAUSE.longest);
      const text = new TextDecoder().decode(await bodyOf(await this.#fetched("GET", "/progress", { signal }), MOST.sentence));
      const { present, seconds_left } = json(text, "not_canonical");
      const secondsLeft = Number.isFinite(seconds_left) ? seconds_left : null;
      return Number.isSafeInteger(present) && present >= 0 ? { present, secondsLeft } : null;
    } catch {
      return null;
    }
  }

  /** Report that this client left; it does not matter whether the report arrives. */
  leave() {
    this.#fetched("DELETE", "/client", { keepalive: true }).catch(() => {});
  }
}

/**
 * The body of a response; refuses one that is longer than the limit.
 * @param {Response} response @param {number} most
 */
async function bodyOf(response, most) {
  const reader = response.body?.getReader();
  let [bytes, size] = [new Uint8Array(1 << 16), 0];
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    if (size + value.length > most) {
      await reader.cancel();
      throw new Left(`the server's answer is longer than ${most} bytes`);
    }
    if (size + value.length > bytes.length) {
      const more = new Uint8Array(2 * (size + value.length));
      more.set(bytes);
      bytes = more;
    }
    bytes.set(value, size);
    size += value.length;
  }
  return bytes.slice(0, size);
}

// --- Keys ------------------------------------------------------------------------------------

/**
 * The identity in a client's key file, or in an invitation link that contains one.
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
    await requireCertified(authority, integer(id, 8), key.public, certificate);
    return { id, key, certificate, authority };
  });
}

/** Fields of a key file, with their lengths in digits. */
const HEX = /** @type {const} */ ([["seed", 64], ["certificate", 144], ["authority", 64]]);
