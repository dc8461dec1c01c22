/**
 * What a client has answered, kept where a closed tab does not lose it: a round of a task has one
 * answer, and a model a few.
 * @module
 */
import { Refused, hex } from "./wire.js";

const DATABASE = "secagg";
const STORE = "rounds";
const ATTEMPTS = 3;

/** @typedef {{next: string, models: string[]}} Spent */
/** @typedef {(task: string, change: (spent: Spent) => Spent) => Promise<void>} Store */

/** Rounds and models of a task, spent before an update is made. */
export class RoundLedger {
  /** @param {Store} [store] @param {number} [attempts] for one model */
  constructor(store = inIndexedDb, attempts = ATTEMPTS) {
    this.store = store;
    this.attempts = attempts;
  }

  /**
   * Spend a round, durably; refuse one that was answered, or a model that had its attempts.
   * @param {string} task @param {bigint} round @param {Uint8Array} model
   */
  async charge(task, round, model) {
    const digest = hex(model);
    await this.store(task, ({ next, models }) => {
      if (round < BigInt(next)) {
        throw new Refused("already_answered", `this browser has answered round ${round}`);
      }
      const uses = models.filter((each) => each === digest).length;
      if (uses >= this.attempts) {
        throw new Refused("already_answered", `${this.attempts} rounds had this very model`);
      }
      return { next: String(round + 1n), models: [...models, digest].slice(-256) };
    });
  }
}

/** A store in memory, for tests and for programs that outlive no round. @returns {Store} */
export function inMemory() {
  /** @type {Map<string, Spent>} */
  const kept = new Map();
  return async (task, change) => {
    kept.set(task, change(kept.get(task) ?? { next: "0", models: [] }));
  };
}

/**
 * A change in one transaction, which all tabs of an origin take in turns.
 * @type {Store}
 */
async function inIndexedDb(task, change) {
  const database = await opened();
  try {
    await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, "readwrite", { durability: "strict" });
      const store = transaction.objectStore(STORE);
      const read = store.get(task);
      /** @type {unknown} */
      let refusal = null;
      read.onsuccess = () => {
        try {
          store.put(change(read.result ?? { next: "0", models: [] }), task);
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
