// Enqueue and read a result from Node.js: no client library of ours, plain XADD and HGETALL.
//   npm install redis && REDIS_URL=redis://localhost:6379 node enqueue.mjs "Say hi"
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient } from "redis";

const redis = await createClient({ url: process.env.REDIS_URL ?? "redis://localhost:6379" }).connect();
const queue = "{default}"; // the braces belong to the key: a queue's keys share a cluster slot
const id = randomUUID();
const body = { messages: [{ role: "user", content: process.argv[2] ?? "Say hi" }], max_tokens: 32 };

await redis.xAdd(`${queue}:lane:high`, "*", {
  id,
  body: JSON.stringify(body),
  deadline: String(Date.now() + 120_000), // epoch milliseconds
});

let result = {};
while (!result.status) {
  await sleep(100);
  result = await redis.hGetAll(`${queue}:result:${id}`);
}
if (result.status === "succeeded") console.log(JSON.parse(result.response).choices[0].message.content);
else console.error(result.status, JSON.parse(result.error).error.message);
await redis.close();
