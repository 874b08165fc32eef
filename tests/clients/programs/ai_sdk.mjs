// The AI SDK with its OpenAI provider, which asks for responses where it is not told otherwise.

import { createOpenAI } from "@ai-sdk/openai";
import { embedMany, generateObject, generateText, jsonSchema, streamText, tool } from "ai";
import { SAY, apiKey, baseURL, embedder, model, run, schema } from "./calls.mjs";

const provider = createOpenAI({ baseURL, apiKey });

async function text(stream) {
  let said = "";
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") said += part.text;
  }
  return said;
}

await run({
  chat: async () => (await generateText({ model: provider.chat(model), prompt: SAY, maxOutputTokens: 24 })).text,
  "chat streamed": async () =>
    text(streamText({ model: provider.chat(model), prompt: SAY, maxOutputTokens: 24, onError() {} }).fullStream),
  object: async () =>
    (await generateObject({ model: provider.chat(model), prompt: SAY, schema: jsonSchema(schema) })).object,
  tool: async () => {
    const tools = { weather: tool({ inputSchema: jsonSchema(schema) }) };
    const asked = { model: provider.chat(model), prompt: SAY, tools, toolChoice: "required" };
    return (await generateText(asked)).toolCalls[0].input;
  },
  embeddings: async () =>
    (await embedMany({ model: provider.embedding(embedder), values: ["a cat", "a dog"] })).embeddings[1],
  response: async () => (await generateText({ model: provider(model), prompt: SAY, maxOutputTokens: 24 })).text,
  "response of a conversation": async () => {
    const one = await generateText({ model: provider(model), prompt: SAY, maxOutputTokens: 24 });
    const turns = [{ role: "user", content: SAY }, ...one.response.messages, { role: "user", content: "And again" }];
    return (await generateText({ model: provider(model), messages: turns, maxOutputTokens: 24 })).text;
  },
  "response streamed": async () =>
    text(streamText({ model: provider(model), prompt: SAY, maxOutputTokens: 24, onError() {} }).fullStream),
});
