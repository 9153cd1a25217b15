// Runs the scenarios of the scenarios*.mjs, one at a time, for a test that speaks JSON lines with it:
//   in   {"run": name, "brokers": {...}}          out  {"name": name, "error": null or the reason}
// While a scenario runs it may ask the test for something it cannot do itself:
//   out  {"ask": "advance", "seconds": 61}        in   {"answer": ...}
// Or it does single things as they come, side by side, for scenarios that are the same through every SDK (calls.mjs):
//   in   {"id": 1, "call": "send", ...}           out  {"id": 1, "value": ...} or {"id": 1, "error": {...}}
import { createInterface } from "node:readline";
import { calls, errorOf } from "./calls.mjs";
import { scenarios as administration } from "./scenarios-administration.mjs";
import { scenarios as rules } from "./scenarios-rules.mjs";
import { scenarios as topics } from "./scenarios-topics.mjs";
import { scenarios as queues } from "./scenarios.mjs";

const scenarios = { ...administration, ...rules, ...topics, ...queues };
const SCENARIO_MS = 45_000;

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function say(message) {
  process.stdout.write(JSON.stringify(message) + "\n");
}

async function ask(what, details = {}) {
  say({ ask: what, ...details });
  const { value, done } = await lines.next();
  if (done) throw new Error("the test has ended");
  return JSON.parse(value).answer;
}

async function answer({ id, call, ...asked }) {
  try {
    if (!(call in calls)) throw new Error(`this SDK has no ${call}`);
    const value = (await calls[call](asked)) ?? null;
    // A scenario ends with a reset, and must not have failed beside its calls.
    if (call === "reset" && strays.length) throw strays.splice(0)[0];
    say({ id, value });
  } catch (reason) {
    say({ id, error: errorOf(reason) });
  }
}

async function within(milliseconds, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${milliseconds} ms`)), milliseconds);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

// The SDK reports some failures outside of any call; they must not end the whole run.
const strays = [];
process.on("unhandledRejection", (reason) => strays.push(reason));
process.on("uncaughtException", (reason) => strays.push(reason));

say({ scenarios: Object.keys(scenarios) });
for (;;) {
  const { value, done } = await lines.next();
  if (done) break;
  const heard = JSON.parse(value);
  if ("call" in heard) {
    answer(heard);
    continue;
  }
  const { run: name, brokers } = heard;
  strays.length = 0;
  const opened = [];
  let error = null;
  try {
    if (!(name in scenarios)) throw new Error(`there is no scenario ${name}`);
    await within(SCENARIO_MS, scenarios[name]({ brokers, ask, opened }));
    if (strays.length) throw strays[0];
  } catch (reason) {
    error = reason?.stack ?? String(reason);
    if (reason?.code) error += `\ncode: ${reason.code}`;
  }
  for (const client of opened) {
    await within(5_000, client.close()).catch((reason) => {
      error ??= `close failed: ${reason?.stack ?? reason}`;
    });
  }
  say({ name, error });
}
process.exit(0);
