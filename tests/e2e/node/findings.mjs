// What OpenAI's own client for Node finds at a gateway, as one JSON object. In Python: tests/e2e/sdk_findings.py.
//
//     node findings.mjs generating|embedding <setup.json
import { File } from "node:buffer";
import { text } from "node:stream/consumers";
import OpenAI from "openai";

globalThis.File ??= File; // Node 18 has it, but not everywhere

const setup = JSON.parse(await text(process.stdin));
const client = new OpenAI({ baseURL: setup.base_url, apiKey: setup.key, maxRetries: 0, timeout: 60_000 });
const { model } = setup;

async function chat() {
  const answer = await client.chat.completions.create({ model, ...setup.chat });
  const chunks = [];
  const asked = { model, ...setup.chat, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(asked)) chunks.push(chunk);
  const choices = chunks.flatMap((chunk) => chunk.choices);
  return {
    text: answer.choices[0].message.content,
    finish_reason: answer.choices[0].finish_reason,
    tokens: answer.usage.completion_tokens,
    request_id: answer._request_id,
    streamed: {
      chunks: choices.length,
      text: choices.map((choice) => choice.delta.content ?? "").join(""),
      finish_reason: choices.at(-1).finish_reason,
      usages: chunks.filter((chunk) => chunk.usage).map((chunk) => chunk.usage.completion_tokens),
      last_has_choices: chunks.at(-1).choices.length > 0,
    },
  };
}

async function completion() {
  const answer = await client.completions.create({ model, ...setup.completion });
  const parts = [];
  for await (const chunk of await client.completions.create({ model, ...setup.completion, stream: true })) {
    parts.push(...chunk.choices.map((choice) => choice.text));
  }
  const tokens = answer.usage.completion_tokens;
  return { text: answer.choices[0].text, tokens, chunks: parts.length, streamed: parts.join("") };
}

async function response() {
  const answer = await client.responses.create({ model, ...setup.response });
  return { text: answer.output_text, tokens: answer.usage.output_tokens, tier: answer.service_tier };
}

async function models() {
  const listed = [];
  for await (const each of client.models.list()) listed.push(each.id);
  return { listed: listed.sort(), one: (await client.models.retrieve(model)).id };
}

async function raised(call) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    const { status = null, code = null, param = null } = error;
    return { kind: error.constructor.name, status, code, param };
  }
  return null;
}

async function errors() {
  const ask = (changes, options) => client.chat.completions.create({ model, ...setup.chat, ...changes }, options);
  const stranger = new OpenAI({ baseURL: setup.base_url, apiKey: "sf-not-a-key", maxRetries: 0 });
  return {
    no_key: await raised(() => stranger.models.list()),
    no_model: await raised(() => ask({ model: "gpt-9" })),
    bad_value: await raised(() => ask({ temperature: -5 })),
    bad_value_streamed: await raised(() => ask({ temperature: -5, stream: true })),
    no_embeddings: await raised(() => client.embeddings.create({ model, input: "one" })),
    no_file: await raised(() => client.files.retrieve(`file-${"0".repeat(32)}`)),
    too_slow: await raised(() => ask(setup.slow, { timeout: 500 })),
    late_in_its_stream: await raised(async () => {
      for await (const _ of await ask({ ...setup.long, stream: true }, { headers: setup.soon })); // to its end
    }),
  };
}

function upload(lines) {
  const content = lines.map((line) => `${JSON.stringify(line)}\n`).join("");
  return client.files.create({ file: new File([content], "requests.jsonl"), purpose: "batch" });
}

async function files() {
  const file = await upload(setup.batch);
  const content = await (await client.files.content(file.id)).text();
  const listed = [];
  for await (const each of client.files.list({ limit: 1 })) listed.push(each.id);
  const { deleted } = await client.files.delete(file.id);
  return {
    filename: file.filename,
    purpose: file.purpose,
    same_size: file.bytes === Buffer.byteLength(content),
    lines: content.trim().split("\n").map((line) => JSON.parse(line)),
    gone: (await raised(() => client.files.retrieve(file.id)))?.code,
    listed: listed.includes(file.id),
    deleted,
  };
}

async function until(batch, reached) {
  const giveUp = Date.now() + 60_000;
  while (!reached(batch)) {
    if (Date.now() > giveUp) throw new Error(`the batch stays ${JSON.stringify(batch)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
}

async function linesOf(fileId) {
  if (!fileId) return [];
  const content = await (await client.files.content(fileId)).text();
  return content.trim().split("\n").map((line) => JSON.parse(line));
}

async function batch(lines, endpoint, { cancelled = false } = {}) {
  const input = await upload(lines);
  const metadata = { for: "a test" };
  let made = await client.batches.create({ input_file_id: input.id, endpoint, completion_window: "24h", metadata });
  if (cancelled) {
    await until(made, (now) => now.status !== "validating");
    made = await client.batches.cancel(made.id);
  }
  const done = await until(made, (now) => ["completed", "failed", "expired", "cancelled"].includes(now.status));
  const listed = [];
  for await (const each of client.batches.list({ limit: 1 })) listed.push(each.id);
  return {
    status: done.status,
    counts: done.request_counts,
    metadata: done.metadata,
    listed: listed.includes(made.id),
    output: await linesOf(done.output_file_id),
    errors: await linesOf(done.error_file_id),
  };
}

async function batches() {
  const found = {};
  for (const [endpoint, asked] of Object.entries(setup.batches)) found[endpoint] = await batch([asked], endpoint);
  return found;
}

const numbers = (answer) => answer.data.map((each) => Array.from(each.embedding));

async function vectors() {
  const { input, tokens } = setup;
  const answer = await client.embeddings.create({ model, input });
  const base64 = await client.embeddings.create({ model, input: input[0], encoding_format: "base64" });
  return {
    usual: numbers(answer),
    usage: answer.usage.prompt_tokens,
    indexes: answer.data.map((each) => each.index),
    float: numbers(await client.embeddings.create({ model, input, encoding_format: "float" })),
    base64: base64.data[0].embedding,
    one: numbers(await client.embeddings.create({ model, input: input[0] })),
    of_tokens: numbers(await client.embeddings.create({ model, input: tokens[0] })),
    of_token_lists: numbers(await client.embeddings.create({ model, input: tokens })),
    dimensions: await raised(() => client.embeddings.create({ model, input, dimensions: 64 })),
    too_long: await raised(() => client.embeddings.create({ model, input: "word ".repeat(4_000) })),
    nothing: await raised(() => client.embeddings.create({ model, input: [] })),
    no_chat: await raised(() => client.chat.completions.create({ model, ...setup.chat })),
  };
}

const parts = {
  generating: async () => ({
    models: await models(),
    chat: await chat(),
    completion: await completion(),
    response: await response(),
    errors: await errors(),
    files: await files(),
    batch: await batch(setup.batch, "/v1/chat/completions"),
    batches: await batches(),
    cancelled: await batch(setup.long_batch, "/v1/chat/completions", { cancelled: true }),
  }),
  embedding: async () => ({
    vectors: await vectors(),
    batch: await batch(setup.batch, "/v1/embeddings"),
    batches: await batches(),
  }),
};
console.log(JSON.stringify(await parts[process.argv[2]]()));
