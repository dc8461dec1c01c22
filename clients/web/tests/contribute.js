/**
 * One or several clients over HTTP, for tests: node contribute.js URL [--seat N | --key FILE]... VALUES
 * VALUES are numbers with commas, or `ramp:COUNT`.
 */
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

import { contribute, identityOf } from "../http.js";
import { RoundLedger, inMemory } from "../ledger.js";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seat: { type: "string", multiple: true, default: [] },
    key: { type: "string", multiple: true, default: [] },
    "leave-at": { type: "string" },
  },
});
const [url, text] = positionals;
const ramp = /^ramp:([0-9]+)$/.exec(text);
const update = ramp
  ? Float32Array.from({ length: Number(ramp[1]) }, (_, i) => (i % 200) / 200 - 0.5)
  : Float64Array.from(text.split(","), Number);
const identities = await Promise.all(
  options.key.map(async (file) => ({ identity: await identityOf(readFileSync(file, "utf8")) })),
);
const clients = [...identities, ...options.seat.map((seat) => ({ seat: BigInt(seat) }))];
const leaving = options["leave-at"];
const outcomes = await Promise.allSettled(
  (clients.length ? clients : [{}]).map((who) => {
    const controller = new AbortController();
    return contribute(url, update, {
      ...who,
      ledger: new RoundLedger(inMemory()),
      patience: 30,
      signal: controller.signal,
      onStage: ({ number }) => {
        if (String(number) === leaving) controller.abort(new Error("left as told"));
      },
    });
  }),
);
for (const outcome of outcomes) {
  if (outcome.status === "fulfilled") {
    const { isReleased, sentence, clamped } = outcome.value;
    console.log(JSON.stringify({ isReleased, sentence, clamped }));
  } else {
    console.log(JSON.stringify({ isReleased: false, sentence: String(outcome.reason) }));
  }
}
process.exit(0);
