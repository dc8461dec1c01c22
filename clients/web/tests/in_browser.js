/**
 * Node's functions that the tests here need, for a browser: an import map replaces `node:` modules by this module.
 * Files are requested from the test's server.
 */

/** The tests of the imported modules. @type {{name: string, play: () => unknown}[]} */
const tests = [];

/** @param {string} name @param {() => unknown} play */
export const test = (name, play) => tests.push({ name, play });

/** Run all tests, one after another. */
export async function playAll() {
  const failed = [];
  for (const { name, play } of tests) {
    try {
      await play();
    } catch (error) {
      failed.push(`${name}: ${error}`);
    }
  }
  return { played: tests.length, failed };
}

// --- node:fs and node:url --------------------------------------------------------------------

/** @param {URL} url */
export const fileURLToPath = (url) => url.pathname;

/** @param {string} path */
export function readFileSync(path) {
  const request = new XMLHttpRequest();
  request.open("GET", path, false);
  request.send();
  if (request.status !== 200) throw new Error(`${path}: ${request.status}`);
  return request.responseText;
}

/** @param {string} folder */
export const readdirSync = (folder) => JSON.parse(readFileSync(folder.endsWith("/") ? folder : `${folder}/`));

// --- node:assert/strict ----------------------------------------------------------------------

/** @param {unknown} condition @param {string} [sentence] */
function assert(condition, sentence = "an assertion does not hold") {
  if (!condition) throw new Error(sentence);
}

/** A value as text with its type and parts. @param {unknown} value @returns {string} */
function shown(value) {
  if (Object.is(value, -0)) return "-0";
  if (typeof value !== "object" || value === null) return `${typeof value} ${String(value)}`;
  return `${value.constructor?.name} {${Object.entries(value).map(([key, part]) => `${key}: ${shown(part)}`)}}`;
}

/** Whether an error is the expected one. @param {any} error @param {any} expected */
function isExpected(error, expected) {
  if (expected === undefined) return true;
  if (typeof expected === "function") {
    return expected.prototype instanceof Error ? error instanceof expected : expected(error) === true;
  }
  return Object.entries(expected).every(([key, value]) =>
    value instanceof RegExp ? value.test(error[key]) : error[key] === value,
  );
}

/** @param {Promise<unknown> | (() => unknown)} act @param {any} [expected] */
async function rejects(act, expected) {
  let error;
  try {
    await (typeof act === "function" ? act() : act);
  } catch (thrown) {
    error = thrown;
  }
  assert(error, "nothing was refused");
  assert(isExpected(error, expected), `another refusal: ${error}`);
}

/** @param {() => unknown} act @param {any} [expected] */
function throws(act, expected) {
  let error;
  try {
    act();
  } catch (thrown) {
    error = thrown;
  }
  assert(error, "nothing was refused");
  assert(isExpected(error, expected), `another refusal: ${error}`);
}

export default Object.assign(assert, {
  ok: assert,
  rejects,
  throws,
  /** @param {unknown} a @param {unknown} b @param {string} [sentence] */
  equal: (a, b, sentence) => assert(Object.is(a, b), sentence ?? `${shown(a)} is not ${shown(b)}`),
  /** @param {unknown} a @param {unknown} b @param {string} [sentence] */
  deepEqual: (a, b, sentence) => assert(shown(a) === shown(b), sentence ?? `${shown(a)} is not ${shown(b)}`),
});
