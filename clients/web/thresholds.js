/**
 * The client's check of an offer's degree, threshold and quorum.
 * Implements protocols/pairwise_mask/README.md, "Thresholds".
 * @module
 */
import { must } from "./wire.js";

/**
 * A client's policy with defaults filled in; refuses values that are not numbers, which would limit nothing.
 * @template {{minimumCohort: number}} T
 * @param {Readonly<T>} usual @param {Partial<Record<keyof T, any>>} [own] @returns {T}
 */
export function policyOf(usual, own) {
  const policy = { ...usual, ...own };
  for (const [name, value] of Object.entries(policy)) {
    const isFloor = Array.isArray(usual[/** @type {keyof T} */ (name)])
      ? Array.isArray(value)
      : Number.isSafeInteger(value) && value >= 0;
    must(isFloor, "parameter_out_of_range", `${name} is not a valid limit: ${value}`);
  }
  must(policy.minimumCohort >= 2, "parameter_out_of_range", "a sum of one is that client's input");
  return policy;
}

const logarithms = [0];

/** ln n! @param {number} n */
function logFactorial(n) {
  for (let i = logarithms.length; i <= n; i++) logarithms.push(logarithms[i - 1] + Math.log(i));
  return logarithms[n];
}

/** ln of a binomial coefficient. @param {number} n @param {number} k */
const logChoose = (n, k) => logFactorial(n) - logFactorial(k) - logFactorial(n - k);

/** Upper bound on the rounding error of a sum. */
const SLACK = 1e-6;

/**
 * ln of the probability that at least this many of the drawn items are marked.
 * @param {number} least @param {number} total @param {number} marked @param {number} drawn
 */
function logTail(least, total, marked, drawn) {
  if (least <= Math.max(0, drawn - (total - marked))) return 0;
  const most = Math.min(marked, drawn);
  if (least > most) return -Infinity;
  let term = 1;
  let sum = 1;
  for (let x = least; x < most; x++) {
    term *= ((marked - x) * (drawn - x)) / ((x + 1) * (total - marked - drawn + x + 1));
    sum += term;
  }
  const first = logChoose(marked, least) + logChoose(total - marked, drawn - least);
  return Math.min(0, first - logChoose(total, drawn) + Math.log(sum) + SLACK);
}

/**
 * The maximum number of marked items among those drawn, except with probability e^ln.
 * @param {number} total @param {number} marked @param {number} drawn @param {number} ln
 */
function mostDrawn(total, marked, drawn, ln) {
  let most = 0;
  while (most < Math.min(marked, drawn) && logTail(most + 1, total, marked, drawn) > ln) most++;
  return most;
}

/**
 * Refuse an offer whose parameters are not secure under this client's assumptions.
 * @param {import("./pairwise.js").Offer} offer @param {number} advertisers
 * @param {number} assumed corrupted clients, at most @param {number} privacyBits
 */
export function requireParameters(offer, advertisers, assumed, privacyBits) {
  const n = advertisers;
  must(
    n >= offer.minimumCohort && n <= offer.population,
    "below_floor", `${n} clients are too few or too many`,
  );
  const corrupted = Math.min(assumed, n);
  const degree = offer.isSparse ? offer.degree : n - 1;
  must(degree < n, "below_floor", "there are fewer clients than neighbours");
  const ln = -(privacyBits + 1) * Math.LN2;
  const least = offer.isSparse
    ? leastOfSparse(offer, n, corrupted, degree, ln)
    : 1 + (offer.isActive ? (n + corrupted) >> 1 : corrupted);
  must(
    offer.threshold >= Math.max(2, least) && offer.threshold <= degree,
    "below_floor", `the threshold is ${offer.threshold} of ${degree}; it must be at least ${least}`,
  );
  if (!offer.isActive) return;
  const committee = offer.committee || n;
  const bad = mostDrawn(n, corrupted, committee, ln);
  must(
    committee <= n && offer.quorum <= committee && offer.quorum >= ((committee + bad) >> 1) + 1,
    "below_floor", "the quorum is too small, or larger than the committee",
  );
}

/**
 * The minimum threshold of a sparse graph.
 * @param {import("./pairwise.js").Offer} offer @param {number} n @param {number} corrupted
 * @param {number} degree @param {number} ln
 */
function leastOfSparse(offer, n, corrupted, degree, ln) {
  const others = Math.min(corrupted, n - 1);
  const near = mostDrawn(n - 1, others, degree, ln - Math.log(n));
  if (!offer.isActive) {
    const pairs = Math.floor((n * (n - degree - 1)) / 2);
    const isWhole =
      degree > corrupted ||
      !pairs ||
      Math.log(pairs) + logChoose(corrupted, degree) - logChoose(n, degree) + SLACK <= ln;
    must(isWhole, "below_floor", "the graph could become disconnected");
    return near + 1;
  }
  const windows = ln - Math.log(Math.floor((n * (n - degree + 1)) / 2));
  const half = Math.min(mostDrawn(n - 1, others, degree / 2, windows / 2), corrupted >> 1);
  return Math.max(degree / 2 + half + 1, ((degree + near) >> 1) + 1);
}
