/**
 * Times of a client: an upload under pairwise masks, one message, and their lower bound, WebCrypto's AES.
 */
import { applicationDigest, encode, layoutVersion, planOf } from "../encoding.js";
import { PIECE, random, stream, streamKey } from "../crypto.js";
import { readOffer, upload } from "../one_message.js";
import { PairwiseClient } from "../pairwise.js";
import { bitSet, concat, hash, header, integer, treeRoot, unhex, utf8, variable } from "../wire.js";

const VALUES = 10 ** 6;
const CLIENTS = 31;
const TURNS = 9;

/** @param {() => Promise<unknown>} act */
export async function milliseconds(act) {
  const began = performance.now();
  await act();
  return performance.now() - began;
}

/** The minimum of several runs: other load only adds time. @param {() => Promise<number>} turn */
async function least(turn) {
  const times = [];
  for (let i = 0; i < TURNS; i++) times.push(await turn());
  return Math.min(...times);
}

const terms = { clients: CLIENTS, all_clients: CLIENTS, group: 1, groups: 1, values: VALUES, clip: 1, bits: 16 };
const text = JSON.stringify(terms);
const update = Float32Array.from({ length: VALUES }, (_, i) => (i % 200) / 200 - 0.5);

/** The offer of a session with a full graph. @param {Uint8Array} opening */
async function offerOf(opening) {
  const { ringBits } = planOf(terms);
  const segment = concat([1], integer(ringBits, 4), integer(VALUES, 8));
  const layout = concat(header(1), integer(1, 4), segment, await layoutVersion(terms));
  const numbers = [0, 16, 0, 0, 16, CLIENTS].map((number) => integer(number, 4));
  const none = new Uint8Array(32);
  const noStanding = new Uint8Array(8 + 32 + 4 + 64);
  return concat(
    header(16), [3], variable(utf8("sum")), none, integer(1, 8), integer(0, 4), [0, 0, 0], ...numbers, variable(layout),
    [8], await applicationDigest(text, terms), none, noStanding,
    await hash("graph-opening", opening), random(32),
  );
}

/** Clients that have shared their keys, the message that the first answers with its upload, and their times. */
export async function sharedClients() {
  const opening = random(32);
  const offer = await offerOf(opening);
  const clients = Array.from({ length: CLIENTS }, (_, i) => new PairwiseClient({
    id: BigInt(i), policy: { modes: ["semi_honest"] }, input: async () => [encode(update, terms).codes],
  }));
  const advertised = await Promise.all(clients.map((client) => client.answer(offer)));
  const entries = advertised.map((message) => message.slice(23, 23 + 64));
  const leaves = entries.map((entry, i) => hash("roster-entry", integer(i, 8), entry));
  const root = await treeRoot(await Promise.all(leaves));
  const { attempt } = clients[0];
  const start = concat(header(18), attempt.slice(0, 8), variable(new Uint8Array(CLIENTS)), root, opening);
  const shares = [];
  for (const [at, client] of clients.entries()) {
    const others = entries.filter((_, i) => i !== at);
    const roster = concat(start, integer(CLIENTS - 1, 4), ...others, integer(0, 4));
    shares.push(await client.answer(roster));
  }
  const sealed = shares.slice(1).map((message) => message.slice(15, 15 + 80));
  const everybody = bitSet(Array(CLIENTS).keys(), CLIENTS);
  const delivered = concat(header(20), clients[0].context.slice(0, 8), everybody, ...sealed);
  return { client: clients[0], delivered };
}

/** Milliseconds for only the streams of all masks, one after another. */
export async function floorOf() {
  const { ringBits } = planOf(terms);
  const bytes = VALUES * (ringBits > 16 ? 4 : 2);
  const key = await streamKey(random(16));
  return milliseconds(async () => {
    for (let mask = 0; mask < CLIENTS; mask++) {
      for (let at = 0; at < bytes; at += PIECE) await stream(key, at, Math.min(PIECE, bytes - at));
    }
  });
}

/** A recorded offer of one message, with the numbers planned for a number of values. @param {string} recorded @param {any} planned */
export async function plannedOffer(recorded, planned) {
  const offer = await readOffer(unhex(recorded));
  const last = offer.segments[offer.segments.length - 1];
  return { ...offer, ...planned, segments: [{ length: VALUES, ringBits: planned.ringBits, bounds: null }, last] };
}

/** One message of these values. @param {import("../one_message.js").Offer} offer */
export async function oneMessage(offer) {
  const { codes } = encode(update, { ...terms, all_clients: 100 });
  const shift = 32 - offer.segments[0].ringBits;
  const signed = new Int32Array(codes);
  for (let i = 0; i < signed.length; i++) signed[i] = (signed[i] << shift) >> shift;
  await upload(offer, { id: 1n, vectors: [signed] });
}

/** Milliseconds of each part, in this run. @param {string} recorded an offer of one message @param {any} planned */
export async function times(recorded, planned) {
  const offer = await plannedOffer(recorded, planned);
  return {
    values: VALUES,
    neighbours: CLIENTS - 1,
    floor: await least(floorOf),
    pairwise: await least(async () => {
      const { client, delivered } = await sharedClients();
      return milliseconds(() => client.answer(delivered));
    }),
    oneMessage: await least(() => milliseconds(() => oneMessage(offer))),
    encoding: await least(() => milliseconds(async () => encode(update, terms))),
  };
}
