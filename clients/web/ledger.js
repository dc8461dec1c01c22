/**
 * What a client has answered, kept where a closed tab does not lose it: a round of a task has one
 * answer, an update goes into one sum, and no epoch of holders is older than one that was seen.
 * @module
 */
import { must } from "./wire.js";

const DATABASE = "secagg";
const STORE = "rounds";
const BLANK = Object.freeze({ next: "0", epoch: "0", updates: [] });

/** @typedef {{next: string, epoch: string, updates: readonly string[]}} Spent */
/**
 * A round, with the digest of the update, if any, and the epoch of its holders where a protocol has some.
 * @typedef {{round: bigint, update?: string, epoch?: bigint}} Wanted
 */
/** @typedef {(name: string, change: (spent: Spent) => Spent) => Promise<void>} Store */

/** What one client has spent, before its update is made. */
export class RoundLedger {
  /** @param {Store} [store] */
  constructor(store = inIndexedDb) {
    this.store = store;
  }

  /** Refuse what `charge` would refuse; nothing changes. @param {string} name @param {Wanted} wanted */
  async requireOpen(name, wanted) {
    await this.store(name, (spent) => {
      charged(spent, wanted);
      return spent;
    });
  }

  /**
   * Spend a round, durably; refuse one that was answered, an update that was sent, or an old epoch.
   * @param {string} name of a client and its task @param {Wanted} wanted
   */
  async charge(name, wanted) {
    await this.store(name, (spent) => charged(spent, wanted));
  }

  /**
   * Remember the newest standing of an authority, and refuse an older one, or a second one of the same time.
   * @param {string} authority @param {bigint} number @param {string} digest of what the authority signed
   */
  async see(authority, number, digest) {
    await this.store(`standing ${authority}`, ({ next, updates }) => {
      must(number >= BigInt(next), "below_floor", "the standing in the offer is older than one seen before");
      const isOther = number === BigInt(next) && updates.length && updates[0] !== digest;
      must(!isOther, "below_floor", "the authority signed two standings of one time; ask it");
      return { next: String(number), epoch: "0", updates: [digest] };
    });
  }
}

/** What is spent afterwards. @param {Spent} spent @param {Wanted} wanted @returns {Spent} */
function charged({ next, epoch: newest, updates }, { round, update, epoch = BigInt(newest) }) {
  must(round >= BigInt(next), "already_answered", `round ${round} was answered here`);
  must(!update || !updates.includes(update), "already_spent", "this very update was sent before");
  must(epoch >= BigInt(newest), "wrong_session", `epoch ${epoch} of the holders is an old one`);
  return { next: String(round + 1n), epoch: String(epoch), updates: update ? [...updates, update] : updates };
}

/** A store in memory, for what outlives no page and no test. @returns {Store} */
export function inMemory() {
  /** @type {Map<string, Spent>} */
  const kept = new Map();
  return async (name, change) => {
    kept.set(name, change(kept.get(name) ?? BLANK));
  };
}

/**
 * A change in one transaction, which all tabs of an origin take in turns.
 * @type {Store}
 */
async function inIndexedDb(name, change) {
  // A browser that runs out of room would otherwise forget what was spent. It may ask the visitor, or say no.
  void navigator.storage?.persist?.().catch(() => {});
  const database = await opened();
  try {
    await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, "readwrite", { durability: "strict" });
      const store = transaction.objectStore(STORE);
      const read = store.get(name);
      /** @type {unknown} */
      let refusal = null;
      read.onsuccess = () => {
        try {
          store.put(change({ ...BLANK, ...read.result }), name);
        } catch (error) {
          refusal = error;
          transaction.abort();
        }
      };
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(refusal ?? transaction.error);
      transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** @returns {Promise<IDBDatabase>} */
function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
