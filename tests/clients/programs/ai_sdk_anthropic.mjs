// The AI SDK with its Anthropic provider.

import { createAnthropic } from "@ai-sdk/anthropic";
import { generateObject, generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import { SAY, apiKey, baseURL, model, run, schema, told } from "./calls.mjs";

const provider = createAnthropic({ baseURL, apiKey });
const asked = { model: provider(model), prompt: SAY, maxOutputTokens: 24 };
const weather = tool({ inputSchema: jsonSchema(schema), execute: async ({ warm }) => `warm: ${warm}` });
const call = 'call weather {"warm":true}';
const telling = { model: provider(told), prompt: call, tools: { weather }, stopWhen: isStepCount(3) };

async function text(stream) {
  let said = "";
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") said += part.text;
  }
  return said;
}

await run({
  message: async () => (await generateText(asked)).text,
  "message streamed": async () => text(streamText({ ...asked, onError() {} }).fullStream),
  "message without a limit": async () =>
    (await generateText({ model: provider(model), prompt: SAY, stopSequences: ["a", "e", "i", "o"] })).finishReason,
  object: async () =>
    (await generateObject({ model: provider(model), prompt: SAY, schema: jsonSchema(schema) })).object,
  tool: async () => {
    const tools = { weather: tool({ inputSchema: jsonSchema(schema) }) };
    const { toolCalls } = await generateText({ ...asked, maxOutputTokens: 200, tools, toolChoice: "required" });
    return "warm" in toolCalls[0].input;
  },
  "tool that runs": async () => (await generateText(telling)).text.includes("warm: true"),
  "tool that runs, streamed": async () =>
    (await text(streamText({ ...telling, onError() {} }).fullStream)).includes("warm: true"),
  conversation: async () => {
    const one = await generateText(asked);
    const messages = [{ role: "user", content: SAY }, ...one.response.messages, { role: "user", content: "And again" }];
    return (await generateText({ model: provider(model), messages, maxOutputTokens: 24 })).text;
  },
});
