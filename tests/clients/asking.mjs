// OpenAI's SDK for Node and the AI SDK ask the gateway by the Responses API: a line for each answer.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";

const { CLIENTS_URL: baseURL, CLIENTS_KEY: apiKey, CLIENTS_MODEL: model } = process.env;
const [FIRST, SECOND] = ["Say hi", "And again"];

// A response, and the next one of a conversation that the caller keeps.
async function openaiSdk() {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const one = await client.responses.create({ model, input: FIRST });
  const input = [{ role: "user", content: FIRST }, ...one.output, { role: "user", content: SECOND }];
  const two = await client.responses.create({ model, input });
  return checked(one.output_text, two.output_text);
}

// The same by the AI SDK, whose provider asks for responses unless it is told otherwise.
async function aiSdk() {
  const openai = createOpenAI({ baseURL, apiKey });
  const first = { role: "user", content: FIRST };
  const one = await generateText({ model: openai(model), maxRetries: 0, messages: [first] });
  const messages = [first, ...one.response.messages, { role: "user", content: SECOND }];
  const ask = (providerOptions) => generateText({ model: openai(model), maxRetries: 0, messages, providerOptions });
  // It refers to answers that a server is to have stored, unless it is told that none are.
  await assert.rejects(ask({}), (error) => error.statusCode === 400 && /store: false/.test(error.message));
  const two = await ask({ openai: { store: false } });
  return checked(one.text, two.text);
}

function checked(one, two) {
  assert.ok(one.startsWith(`[simulated] ${FIRST}`), one);
  assert.ok(two.startsWith(`[simulated] ${FIRST} [simulated]`), two);
  return one.slice(0, 60);
}

for (const [name, ask] of [["openai", openaiSdk], ["ai", aiSdk]]) {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  console.log(`${name} ${version} (Node): ${await ask()}`);
}
