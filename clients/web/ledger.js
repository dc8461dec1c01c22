/**
 * Ledger of a client's answers, which survives a closed tab: one answer for each round of a task, one
 * sum for each update, and no epoch of holders older than one already seen.
 * @module
 */
import { must } from "./wire.js";

const DATABASE = "secagg";
const STORE = "rounds";
const BLANK = Object.freeze({ next: "0", epoch: "0", updates: [] });

/** @typedef {{next: string, epoch: string, updates: readonly string[]}} Spent */
/**
 * A round, with the digest of the update, if any, and the epoch of its holders, if the protocol has some.
 * @typedef {{round: bigint, update?: string, epoch?: bigint}} Wanted
 */
/** @typedef {(name: string, change: (spent: Spent) => Spent) => Promise<void>} Store */

/** Ledger of one client; rounds are spent before the update is made. */
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
   * Spend a round durably; refuse an answered round, a sent update, or an old epoch.
   * @param {string} name of a client and its task @param {Wanted} wanted
   */
  async charge(name, wanted) {
    await this.store(name, (spent) => charged(spent, wanted));
  }

  /**
   * Remember an authority's newest standing, and refuse an older one, or another one of the same time.
   * @param {string} authority @param {bigint} number @param {string} digest of what the authority signed
   */
  async see(authority, number, digest) {
    await this.store(`standing ${authority}`, ({ next, updates }) => {
      must(number >= BigInt(next), "below_floor", "the standing in the offer is older than one seen before");
      const isOther = number === BigInt(next) && updates.length && updates[0] !== digest;
      must(!isOther, "below_floor", "the authority signed two standings for one time; ask the authority");
      return { next: String(number), epoch: "0", updates: [digest] };
    });
  }
}

/** The spent record after a round. @param {Spent} spent @param {Wanted} wanted @returns {Spent} */
function charged({ next, epoch: newest, updates }, { round, update, epoch = BigInt(newest) }) {
  must(round >= BigInt(next), "already_answered", `round ${round} was already answered here`);
  must(!update || !updates.includes(update), "already_spent", "this update was already sent");
  must(epoch >= BigInt(newest), "wrong_session", `the holders' epoch ${epoch} is old`);
  return { next: String(round + 1n), epoch: String(epoch), updates: update ? [...updates, update] : updates };
}

/** A store in memory, for pages and tests that keep nothing. @returns {Store} */
export function inMemory() {
  /** @type {Map<string, Spent>} */
  const kept = new Map();
  return async (name, change) => {
    kept.set(name, change(kept.get(name) ?? BLANK));
  };
}

/**
 * A change in one transaction; all tabs of an origin take turns.
 * @type {Store}
 */
async function inIndexedDb(name, change) {
  // Otherwise a browser that runs out of space could delete the ledger. It may ask the visitor, or refuse.
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
