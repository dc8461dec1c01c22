/**
 * The page of `secagg serve --page`: a visitor draws, sees the server's view, and sees the sum.
 * @module
 */
import { planOf } from "../encoding.js";
import { Left, NEAR, contribute, identityOf } from "../http.js";
import { RoundLedger, inMemory } from "../ledger.js";
import { Refused, hex } from "../wire.js";
import { Drawing, SIDE, show } from "./drawing.js";

/** @template {HTMLElement} T @param {string} id @returns {T} */
const element = (id) => /** @type {T} */ (document.getElementById(id));

const [send, clear] = ["send", "clear"].map((id) => /** @type {HTMLButtonElement} */ (element(id)));
const seen = /** @type {HTMLCanvasElement} */ (element("seen"));
const mean = /** @type {HTMLCanvasElement} */ (element("mean"));
const stages = [...element("stages").children];
const drawing = new Drawing(/** @type {HTMLCanvasElement} */ (element("drawing")));
const BLANK = new Float32Array(SIDE * SIDE);
/** Bytes of an upload before its first value: header, tag and, in active mode, a signature. */
const HEAD = { semi_honest: 15, active: 15 + 64 };
/** The upload is the answer to this stage of pairwise masks. */
const UPLOAD_STAGE = 2;
/** The last session that this tab took part in. */
let last = "";
/** Ends the current participation. @type {AbortController | null} */
let current = null;
/** Without a key each tab is a visitor with a separate drawing; both end with the tab. */
const ofTab = new RoundLedger(inMemory());

/** @param {string} sentence */
const say = (sentence) => (element("say").textContent = sentence);

/** The visitor's key, if it came by invitation. @type {Promise<import("../pairwise.js").Identity | undefined>} */
let invitation = Promise.resolve(undefined);

/** An invitation is a key file after the link's number sign; it is never sent, and is removed from the address bar. */
function takeInvitation() {
  const text = location.hash.slice(1);
  if (!text) return;
  history.replaceState(null, "", location.pathname);
  // Parsed like a query: badly encoded text is not a key file, but raises no error here.
  invitation = identityOf(new URLSearchParams(`key=${text}`).get("key") ?? "");
  invitation.catch(() => {}); // The error is shown when the visitor takes part.
}

/** An authority's shortened key, for visitors to compare. @param {Uint8Array} key */
const fingerprint = (key) => hex(key.slice(0, 16)).replace(/.{4}(?=.)/g, "$& ");

/** Show which stages are done. @param {number} done */
function showStages(done) {
  stages.forEach((item, i) => {
    item.className = i < done ? "done" : i === done ? "now" : "";
    if (i === done) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
  });
}

/**
 * The values of an upload as the server receives them, each scaled to 0..1.
 * @param {Uint8Array} upload @param {number} bits @param {number} head
 */
function maskedLevels(upload, bits, head) {
  return Float32Array.from({ length: SIDE * SIDE }, (_, i) => {
    let value = 0;
    for (let bit = bits - 1; bit >= 0; bit--) {
      const at = i * bits + bit;
      value = 2 * value + ((upload[head + (at >> 3)] >> (at & 7)) & 1);
    }
    return value / (2 ** bits - 1);
  });
}

/** @param {import("../http.js").SessionDescription} description @param {boolean} isFull @param {Uint8Array} [authority] */
function showDescription(description, isFull, authority) {
  const { clients } = description.terms;
  say(isFull
    ? "This sum has begun, or is full. You take part in the next one: stay here."
    : `A sum of up to ${clients} drawings is open. It waits for the others.`);
  element("mode").textContent = authority
    ? `Every client here has a key that the authority ${fingerprint(authority)} certified: ask the person who ` +
      "invited you for these digits. The authority decides who takes part, so a server that is the authority, " +
      "or made the invitations, can fill all seats but yours."
    : "Seats are anonymous here: the server is trusted not to fill them all itself. Invitations from an " +
      "authority that is not the server change that.";
}

/** @param {import("../http.js").Progress} progress @param {import("../http.js").SessionDescription} description */
function showProgress({ present, secondsLeft }, { terms }) {
  const time = secondsLeft === null ? "" : ` This step ends in ${Math.ceil(secondsLeft)} s at the latest.`;
  element("progress").textContent = `${present} of up to ${terms.clients} visitors are here.${time}`;
}

/** @param {import("../http.js").Stage} stage @param {import("../http.js").SessionDescription} description */
function showStage({ number, answer }, description) {
  showStages(number + 1);
  if (number !== UPLOAD_STAGE) return;
  const head = description.mode === "active" ? HEAD.active : HEAD.semi_honest;
  show(seen, maskedLevels(answer, planOf(description.terms).ringBits, head));
  const note = `${answer.length} bytes, random to anyone without the others' masks.`;
  element("seen-note").textContent = note;
  seen.setAttribute("aria-label", `Noise: ${note}`);
}

/** @param {import("../http.js").Outcome} outcome */
function showOutcome({ isReleased, sentence, result }) {
  say(sentence);
  if (!isReleased || !result) return;
  showStages(stages.length);
  show(mean, result.mean);
  const note = `${result.count} drawings, added before anybody could look at one.`;
  element("mean-note").textContent = note;
  mean.setAttribute("aria-label", `The average of ${note}`);
}

/** Take part in one session after another until one gives a sum. */
async function takePart() {
  if (drawing.isEmpty) {
    say("Draw something first.");
    return;
  }
  current = new AbortController();
  const { signal } = current;
  clear.disabled = drawing.isLocked = true;
  send.textContent = "Stop";
  delete document.body.dataset.ended;
  try {
    const identity = await invitation;
    while (!(await takePartOnce(identity, signal)));
  } catch (error) {
    const isKnown = error instanceof Refused || error instanceof Left;
    if (signal.aborted) say("You have stopped. Your drawing is still here.");
    else say(isKnown ? `Nothing more was sent: ${error.message}.` : "This browser cannot take part.");
    if (!isKnown && !signal.aborted) throw error;
  } finally {
    current = null;
    clear.disabled = drawing.isLocked = false;
    send.textContent = "Add my drawing";
    element("progress").textContent = "";
    document.body.dataset.ended = "yes";
  }
}

/**
 * Whether there is a sum, or no further session to wait for.
 * @param {import("../pairwise.js").Identity | undefined} identity @param {AbortSignal} signal
 */
async function takePartOnce(identity, signal) {
  show(seen, BLANK);
  showStages(0);
  /** @type {import("../http.js").SessionDescription} */
  let description;
  const outcome = await contribute(location.origin, drawing.ink, {
    identity,
    ledger: identity ? new RoundLedger() : ofTab,
    protocols: ["pairwise"],
    after: last,
    signal,
    onDescription: (given, isFull) => {
      description = given;
      showDescription(given, isFull, identity?.authority);
    },
    onProgress: (progress) => showProgress(progress, description),
    onStage: (stage) => showStage(stage, description),
  });
  const isSame = outcome.description.session === last;
  last = outcome.description.session;
  showOutcome(outcome);
  if (!outcome.isReleased && !isSame) say(`${outcome.sentence}. You take part in the next sum: stay here.`);
  return outcome.isReleased || isSame;
}

send.addEventListener("click", () => void (current ? current.abort() : takePart()));
clear.addEventListener("click", () => drawing.clear());
const link = /** @type {HTMLAnchorElement} */ (element("link"));
link.href = link.textContent = location.origin + location.pathname;
element("reach").hidden = !NEAR.includes(location.hostname);
element("copy").addEventListener("click", () => {
  const [done, failed] = ["The address is copied.", "Select the address above to copy it."];
  navigator.clipboard.writeText(link.href).then(() => say(done), () => say(failed));
});
addEventListener("hashchange", takeInvitation);
takeInvitation();
for (const canvas of [seen, mean]) show(canvas, BLANK);
