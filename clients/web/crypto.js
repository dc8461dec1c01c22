/**
 * WebCrypto under the specification's names, and SHAKE-256, which it lacks.
 * @module
 */
import { as, bind, bytes, concat, hex, integer, list, long, must, number, record, toBigInt, utf8 } from "./wire.js";

const { subtle } = globalThis.crypto;
const HOUR = 3600n;
/** Seconds by which the authority's clock may be ahead. */
const CLOCKS_APART = 3600;
const STANDING = record({ number: long, digest: bytes(32), revoked: list(2 ** 16, number(4)), signature: bytes(64) });
/** @typedef {(count: number) => Uint8Array} Coins */

const FIELD = (1n << 255n) - 19n;
const ORDER_EIGHT = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;
/** The y-coordinates of the Ed25519 points of small order. */
const SMALL_ORDER = new Set([0n, 1n, FIELD - 1n, ORDER_EIGHT, FIELD - ORDER_EIGHT]);
/** The PKCS #8 prefix of a raw private key; the last byte of the identifier differs. */
const PKCS8 = (/** @type {number} */ algorithm) => [
  ...[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, algorithm, 4, 0x22, 4, 0x20],
];
const [X25519, ED25519] = [0x6e, 0x70];
const BASE_POINT = concat([9], new Uint8Array(31));

// --- Coins, hashes, key derivation -----------------------------------------------------------

/** Random bytes from the browser, which returns at most 64 KiB at a time. @type {Coins} */
export function random(count) {
  const out = new Uint8Array(count);
  for (let at = 0; at < count; at += 65536) crypto.getRandomValues(out.subarray(at, at + 65536));
  return out;
}

/** @param {Uint8Array} bytes */
export const sha256 = async (bytes) =>
  new Uint8Array(await subtle.digest("SHA-256", bytes));

/** @param {Uint8Array} key @param {Uint8Array} bytes */
async function hmac(key, bytes) {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const imported = await subtle.importKey("raw", key, algorithm, false, ["sign"]);
  return new Uint8Array(await subtle.sign("HMAC", imported, bytes));
}

/** HKDF-Expand, for at most 32 bytes. @param {Uint8Array} secret @param {Uint8Array} info @param {number} count */
export async function expand(secret, info, count) {
  const block = await hmac(secret, concat(info, [1]));
  const out = block.slice(0, count);
  block.fill(0);
  return out;
}

/** HKDF. @param {Uint8Array} secret @param {Uint8Array} salt @param {Uint8Array} info @param {number} count */
export async function derive(secret, salt, info, count = 32) {
  const key = await subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const algorithm = { name: "HKDF", hash: "SHA-256", salt, info };
  return new Uint8Array(await subtle.deriveBits(algorithm, key, 8 * count));
}

// --- X25519 ----------------------------------------------------------------------------------

/** @param {Uint8Array} bytes */
const littleEndian = (bytes) => toBigInt(bytes.slice().reverse());

/** The u-coordinates of points of low order. */
const LOW_ORDER = new Set([
  0n, 1n, FIELD - 1n,
  325606250916557431795983626356110631294008115727848805560023387167927233504n,
  39382357235489614581723060781553021112529911719440698176882885853963445705823n,
]);

/** Whether an X25519 key is a low-order point, whose shared secrets are public. @param {Uint8Array} key */
export const isLowOrder = (key) => LOW_ORDER.has(littleEndian(key));

/** Whether an X25519 key is in its canonical encoding. @param {Uint8Array} key */
export const isCanonical = (key) => littleEndian(key) < FIELD;

/**
 * The raw shared secret. WebCrypto refuses keys of low order.
 * @param {CryptoKey} own @param {Uint8Array} peer
 */
export async function agree(own, peer) {
  const key = await subtle.importKey("raw", peer, "X25519", true, []);
  return new Uint8Array(await subtle.deriveBits({ name: "X25519", public: key }, own, 256));
}

/** @typedef {{own: CryptoKey, public: Uint8Array}} KeyPair */
/** A key pair from its private key. @param {Uint8Array} raw @returns {Promise<KeyPair>} */
export async function keyPair(raw) {
  const encoded = concat(PKCS8(X25519), raw);
  const own = await subtle.importKey("pkcs8", encoded, "X25519", false, ["deriveBits"]);
  encoded.fill(0);
  return { own, public: await agree(own, BASE_POINT) };
}

// --- Ed25519 ---------------------------------------------------------------------------------

/** Whether a key is canonically encoded and not of small order. @param {Uint8Array} key */
export function isStrong(key) {
  const height = littleEndian(key) & ((1n << 255n) - 1n);
  return height < FIELD && !SMALL_ORDER.has(height);
}

/** A private signing key of a client. */
export class SigningKey {
  /** @param {CryptoKey} own @param {Uint8Array} publicKey */
  constructor(own, publicKey) {
    this.own = own;
    this.public = publicKey;
  }

  /** @param {Uint8Array} seed of 32 bytes */
  static async of(seed) {
    const encoded = concat(PKCS8(ED25519), seed);
    const shown = await subtle.importKey("pkcs8", encoded, "Ed25519", true, ["sign"]);
    const own = await subtle.importKey("pkcs8", encoded, "Ed25519", false, ["sign"]);
    encoded.fill(0);
    const { x } = await subtle.exportKey("jwk", shown);
    const base64 = /** @type {string} */ (x).replace(/-/g, "+").replace(/_/g, "/");
    return new SigningKey(own, Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)));
  }

  /** @param {string} label @param {...Uint8Array} parts */
  async sign(label, ...parts) {
    return new Uint8Array(await subtle.sign("Ed25519", this.own, bind(label, ...parts)));
  }
}

/**
 * Refuse a signature that does not verify, or a weak key, under which forgeries verify.
 * @param {Uint8Array} key @param {Uint8Array} signature
 * @param {string} label @param {...Uint8Array} parts
 */
export async function verify(key, signature, label, ...parts) {
  must(isStrong(key), "authentication_failed", "a signing key is weak or not canonical");
  const imported = await subtle.importKey("raw", key, "Ed25519", true, ["verify"]);
  const holds = await subtle.verify("Ed25519", imported, signature, bind(label, ...parts));
  must(holds, "authentication_failed", `a signature does not verify (${label})`);
}

/**
 * The head of an authority's roster: its time, and the revoked certificates.
 * @typedef {{number: bigint, digest: Uint8Array, revoked: number[], signature: Uint8Array}} Standing
 */

/** The standing in an offer. @param {import("./wire.js").Reader} reader @returns {Standing} */
export function readStanding(reader) {
  const standing = STANDING(reader);
  const { revoked } = standing;
  must(revoked.every((each, i) => !i || revoked[i - 1] < each), "not_canonical", "revoked numbers are out of order");
  return standing;
}

/** The parts of a standing that the authority signs. @param {Standing} standing */
export function standingParts({ number, digest, revoked }) {
  return [integer(number, 8), digest, ...revoked.map((each) => integer(each, 4))];
}

/** Refuse a certificate that was revoked or had expired when a standing was made. @param {Uint8Array} grant @param {Standing} standing */
export function requireValid(grant, { number, revoked }) {
  const view = new DataView(grant.buffer, grant.byteOffset, 8);
  must(!revoked.includes(view.getUint32(0)), "authentication_failed", "a certificate was revoked");
  must(BigInt(view.getUint32(4)) * HOUR > number, "authentication_failed", "a certificate has expired");
}

/**
 * Refuse a standing that is forged, too old, older than one seen, or that revokes this client.
 * @param {Standing} standing
 * @param {{authority: Uint8Array, certificate: Uint8Array}} identity
 * @param {object} own
 * @param {{maximumStandingAge: number}} own.policy
 * @param {(authority: string, number: bigint, digest: string) => unknown} [own.seen] remembers it, or refuses an older one
 * @param {() => number} own.now seconds since 1970
 */
export async function requireStanding(standing, { authority, certificate }, { policy, seen, now }) {
  const parts = standingParts(standing);
  const age = now() - Number(standing.number);
  const why = (/** @type {string} */ sentence) => `the standing in the offer ${sentence}`;
  await as("below_floor", () => verify(authority, standing.signature, "standing", authority, ...parts));
  must(age >= -CLOCKS_APART, "below_floor", why("is from the future; compare this device's clock with the authority's"));
  must(age <= policy.maximumStandingAge, "below_floor", why("is too old; the authority must sign its roster again"));
  await seen?.(hex(authority), standing.number, hex(await sha256(concat(...parts))));
  await as("below_floor", async () => requireValid(certificate, standing));
}

/**
 * Refuse a key that an authority did not certify; a grant is the certificate's number, its expiry and a signature.
 * @param {Uint8Array} authority @param {Uint8Array} id @param {Uint8Array} key @param {Uint8Array} grant
 */
export async function requireCertified(authority, id, key, grant) {
  must(isStrong(key), "authentication_failed", "a certified key is weak or not canonical");
  await verify(authority, grant.slice(8), "certificate", authority, id, key, grant.slice(0, 8));
}

// --- AES -------------------------------------------------------------------------------------

/** @param {Uint8Array} key @param {Uint8Array} nonce @param {Uint8Array} text @param {Uint8Array} data */
export async function seal(key, nonce, text, data) {
  const algorithm = { name: "AES-GCM", iv: nonce, additionalData: data };
  const imported = await subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  return new Uint8Array(await subtle.encrypt(algorithm, imported, text));
}

/** @param {Uint8Array} key @param {Uint8Array} nonce @param {Uint8Array} sealed @param {Uint8Array} data */
export async function open(key, nonce, sealed, data) {
  const algorithm = { name: "AES-GCM", iv: nonce, additionalData: data };
  const imported = await subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
  return new Uint8Array(await subtle.decrypt(algorithm, imported, sealed));
}

/** Bytes of one segment of a mask's stream. */
export const SEGMENT = 1 << 20;
/** Bytes of a stream requested at once: browsers take longer per byte for larger pieces. */
export const PIECE = 1 << 17;
const ZEROS = new Uint8Array(SEGMENT);

/** @param {Uint8Array} key of 16 bytes */
export const streamKey = (key) =>
  subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);

/** A part of a mask's stream that ends within a segment. @param {CryptoKey} key @param {number} at @param {number} count */
export function stream(key, at, count) {
  const [segment, block] = [Math.floor(at / SEGMENT), 2 + (at % SEGMENT) / 16];
  const counter = concat(integer(segment, 12), integer(block, 4));
  return subtle.encrypt({ name: "AES-CTR", counter, length: 32 }, key, ZEROS.subarray(0, count));
}

/** The first counter block. */
export const START = new Uint8Array(16);

/** AES-256 in counter mode, starting with a block of 16 bytes. @param {Uint8Array} key @param {Uint8Array} counter @param {number} count */
export async function counterMode(key, counter, count) {
  const imported = await streamKey(key);
  const algorithm = { name: "AES-CTR", counter, length: 128 };
  return new Uint8Array(await subtle.encrypt(algorithm, imported, new Uint8Array(count)));
}

// --- HPKE ------------------------------------------------------------------------------------

const [KEM_X25519, KDF_SHA256, AES_128_GCM] = [0x20, 1, 1].map((algorithm) => integer(algorithm, 2));
const KEM = concat(utf8("KEM"), KEM_X25519);
const SUITE = concat(utf8("HPKE"), KEM_X25519, KDF_SHA256, AES_128_GCM);
const NONE = new Uint8Array(0);

/** @param {Uint8Array} suite @param {string} label @param {...Uint8Array} parts */
const labeled = (suite, label, ...parts) => concat(utf8("HPKE-v1"), suite, utf8(label), ...parts);

/** The info of LabeledExpand. @param {number} count @param {Parameters<typeof labeled>} parts */
const expanding = (count, ...parts) => concat(integer(count, 2), labeled(...parts));

/**
 * Seal to an X25519 key: RFC 9180, base mode, single shot, without associated data. One extraction followed by one
 * expansion is computed as a single HKDF.
 * @param {Uint8Array} receiver @param {Uint8Array} info @param {Uint8Array} text
 */
export async function sealTo(receiver, info, text) {
  const scalar = random(32);
  const ephemeral = await keyPair(scalar);
  const exchanged = labeled(KEM, "eae_prk", await agree(ephemeral.own, receiver));
  const both = concat(ephemeral.public, receiver);
  const shared = await derive(exchanged, NONE, expanding(32, KEM, "shared_secret", both));
  const [noKey, about] = await Promise.all(
    [labeled(SUITE, "psk_id_hash"), labeled(SUITE, "info_hash", info)].map((part) => hmac(new Uint8Array(32), part)),
  );
  const context = concat([0], noKey, about);
  const scheduled = (/** @type {string} */ label, /** @type {number} */ count) =>
    derive(labeled(SUITE, "secret"), shared, expanding(count, SUITE, label, context), count);
  const [key, nonce] = [await scheduled("key", 16), await scheduled("base_nonce", 12)];
  const sealed = await seal(key, nonce, text, NONE);
  for (const secret of [scalar, exchanged, shared, key]) secret.fill(0);
  return concat(ephemeral.public, sealed);
}

// --- SHAKE-256, only of public bytes: BigInt is not constant time ----------------------------

const [RATE, ROUNDS] = [136, 24];

/** @param {bigint} lane @param {number} by */
const rotated = (lane, by) => BigInt.asUintN(64, (lane << BigInt(by)) | (lane >> BigInt(64 - by)));

/** Keccak-f[1600] on the lanes x + 5 y, in place; the steps of a round are named as in FIPS 202. @param {BigUint64Array} lanes */
function permute(lanes) {
  let register = 1;
  for (let round = 0; round < ROUNDS; round++) {
    // theta
    const parity = [0, 1, 2, 3, 4].map((x) => lanes[x] ^ lanes[x + 5] ^ lanes[x + 10] ^ lanes[x + 15] ^ lanes[x + 20]);
    for (let at = 0; at < 25; at++) lanes[at] ^= parity[(at + 4) % 5] ^ rotated(parity[(at + 1) % 5], 1);
    // rho and pi
    let [x, y, moved] = [1, 0, lanes[1]];
    for (let t = 1; t <= 24; t++) {
      [x, y] = [y, (2 * x + 3 * y) % 5];
      [moved, lanes[x + 5 * y]] = [lanes[x + 5 * y], rotated(moved, ((t * (t + 1)) / 2) % 64)];
    }
    // chi
    for (let row = 0; row < 25; row += 5) {
      const own = lanes.slice(row, row + 5);
      for (let at = 0; at < 5; at++) lanes[row + at] ^= ~own[(at + 1) % 5] & own[(at + 2) % 5];
    }
    // iota
    for (let j = 0; j < 7; j++) {
      if (register & 1) lanes[0] ^= 1n << BigInt(2 ** j - 1);
      register = (register << 1) ^ (register & 128 ? 0x171 : 0);
    }
  }
}

/**
 * SHAKE-256 of unlimited length, as big-endian words of four bytes. The machine is little-endian.
 * @param {Uint8Array} message @returns {Generator<number, never>}
 */
export function* shakeWords(message) {
  const lanes = new BigUint64Array(25);
  const bytes = new Uint8Array(lanes.buffer);
  const padded = new Uint8Array(Math.ceil((message.length + 1) / RATE) * RATE);
  padded.set(message);
  padded[message.length] ^= 0x1f;
  padded[padded.length - 1] ^= 0x80;
  for (let at = 0; at < padded.length; at += RATE) {
    for (let i = 0; i < RATE; i++) bytes[i] ^= padded[at + i];
    permute(lanes);
  }
  for (;;) {
    const block = new DataView(bytes.slice(0, RATE).buffer);
    for (let at = 0; at < RATE; at += 4) yield block.getUint32(at);
    permute(lanes);
  }
}

/** A uniform integer from 0 to a maximum. @param {Generator<number, never>} words @param {number} greatest */
export function drawUpTo(words, greatest) {
  const mask = greatest ? 2 ** (32 - Math.clz32(greatest)) - 1 : 0;
  for (;;) {
    const word = (words.next().value & mask) >>> 0;
    if (word <= greatest) return word;
  }
}
