// BullMQ on Node: the command line of shared.py. Run in the folder that has its node_modules.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";
import { fileURLToPath } from "node:url";

const require = createRequire(`${process.cwd()}/`);
const { Queue, QueueEvents, Worker } = require("bullmq");
const Redis = require("ioredis");

const PAYLOAD = "x".repeat(500);
const RESULT = "y".repeat(500);
const AT_ONCE = 500;
const WARM_UP_JOBS = 2000; // Node compiles while it runs: it needs more of them than Python
const WARM_UP_CALLS = 50;
const LOOK_EVERY_MS = 5;
const DRAIN_TIMEOUT_MS = 120_000;
const CONCURRENCY = { drain: 100, defaults: 1, tuned: 1 };
const QUEUE = "bench";

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { seconds: { type: "string", default: "5" }, tuned: { type: "boolean", default: false } },
});
const [url, command, argument] = positionals;
const connection = { host: new URL(url).hostname, port: Number(new URL(url).port) };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function enqueue(queue, count) {
  for (let left = count; left > 0; left -= AT_ONCE) {
    const length = Math.min(left, AT_ONCE);
    await queue.addBulk(Array.from({ length }, () => ({ name: "noop", data: { payload: PAYLOAD } })));
  }
}

function work(mode) {
  const options = { connection: { ...connection, maxRetriesPerRequest: null }, concurrency: CONCURRENCY[mode] };
  new Worker(QUEUE, async () => RESULT, options);
}

async function withWorker(mode, measure) {
  const worker = spawn(process.execPath, [fileURLToPath(import.meta.url), url, "work", mode], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  const ended = new Promise((_, fail) => worker.on("exit", () => fail(new Error("the worker has ended"))));
  ended.catch(() => {});
  try {
    return await Promise.race([measure(), ended]);
  } finally {
    worker.kill("SIGKILL"); // nothing in it is worth keeping
  }
}

async function measureEnqueue(jobs) {
  const queue = new Queue(QUEUE, { connection });
  const warmUp = Math.min(jobs, WARM_UP_JOBS);
  await enqueue(queue, warmUp);
  const started = performance.now();
  await enqueue(queue, jobs);
  const seconds = (performance.now() - started) / 1000;
  const queued = await queue.getWaitingCount();
  await queue.close();
  if (queued !== warmUp + jobs) throw new Error(`${queued} jobs are queued, not ${warmUp + jobs}`);
  return { jobs, seconds, total: queued };
}

async function measureDrain(jobs) {
  const queue = new Queue(QUEUE, { connection });
  await enqueue(queue, jobs);
  await queue.close();
  const redis = new Redis(connection);
  const watch = async () => {
    const givenUp = performance.now() + DRAIN_TIMEOUT_MS;
    let first = null;
    for (;;) {
      const finished = await redis.zcard(`bull:${QUEUE}:completed`);
      const now = performance.now();
      if (first === null && finished > 0) first = { finished, now };
      if (finished === jobs) return { jobs: jobs - first.finished, seconds: (now - first.now) / 1000 };
      if (now > givenUp) throw new Error(`${finished} of ${jobs} jobs finished in time`);
      await pause(LOOK_EVERY_MS);
    }
  };
  const measured = await withWorker("drain", watch);
  let stored = 0;
  for (let id = 1; id <= jobs; id++) stored += await redis.hexists(`bull:${QUEUE}:${id}`, "returnvalue");
  redis.disconnect();
  if (stored !== jobs) throw new Error(`${stored} results are stored, not ${jobs}`);
  return { ...measured, stored };
}

async function measureRoundtrip(calls, seconds) {
  const queue = new Queue(QUEUE, { connection });
  const events = new QueueEvents(QUEUE, { connection });
  await events.waitUntilReady();
  const call = async () => {
    const job = await queue.add("noop", { payload: PAYLOAD });
    const result = await job.waitUntilFinished(events, 10_000);
    if (result.length !== RESULT.length) throw new Error(`the result is ${result}, not what the job returns`);
  };
  const ms = await withWorker(values.tuned ? "tuned" : "defaults", async () => {
    for (let n = 0; n < WARM_UP_CALLS; n++) await call();
    const until = performance.now() + seconds * 1000;
    const taken = [];
    while (taken.length < 5 || (taken.length < calls && performance.now() < until)) {
      const started = performance.now();
      await call();
      taken.push(performance.now() - started);
    }
    return taken;
  });
  await events.close();
  await queue.close();
  return { ms };
}

const measures = {
  enqueue: () => measureEnqueue(Number(argument)),
  drain: () => measureDrain(Number(argument)),
  roundtrip: () => measureRoundtrip(Number(argument), Number(values.seconds)),
};
if (command === "work") {
  work(argument);
} else {
  console.log(JSON.stringify(await measures[command]()));
}
