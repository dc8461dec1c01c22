import { concat } from "../wire.js";

/**
 * An authority's grant for a client's key: number 0, never revoked, and no expiry.
 * @param {import("../crypto.js").SigningKey} authority @param {Uint8Array} id @param {Uint8Array} key
 */
export async function granted(authority, id, key, about = new Uint8Array([0, 0, 0, 0, 255, 255, 255, 255])) {
  return concat(about, await authority.sign("certificate", authority.public, id, key, about));
}
