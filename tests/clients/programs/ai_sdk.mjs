// The AI SDK with its OpenAI provider, which asks for responses where it is not told otherwise.

import { createOpenAI } from "@ai-sdk/openai";
import { embedMany, generateObject, generateText, isStepCount, jsonSchema, streamObject, streamText, tool } from "ai";
import { SAY, apiKey, baseURL, embedder, model, run, schema, told } from "./calls.mjs";

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
  "response with a tool": async () => {
    const tools = { weather: tool({ inputSchema: jsonSchema(schema) }) };
    const asked = { model: provider(model), prompt: SAY, tools, toolChoice: "required" };
    return (await generateText(asked)).toolCalls[0].input;
  },
  "response with a tool that runs": async () => {
    const execute = async ({ warm }) => `warm: ${warm}`;
    const tools = { weather: tool({ inputSchema: jsonSchema(schema), execute }) };
    const asked = { model: provider(told), prompt: 'call weather {"warm":true}', tools, stopWhen: isStepCount(3) };
    return (await generateText(asked)).text.includes("warm: true");
  },
  "response of a conversation": async () => {
    const one = await generateText({ model: provider(model), prompt: SAY, maxOutputTokens: 24 });
    const turns = [{ role: "user", content: SAY }, ...one.response.messages, { role: "user", content: "And again" }];
    return (await generateText({ model: provider(model), messages: turns, maxOutputTokens: 24 })).text;
  },
  "response streamed": async () =>
    text(streamText({ model: provider(model), prompt: SAY, maxOutputTokens: 24, onError() {} }).fullStream),
  "object of a response streamed": async () => {
    const asked = streamObject({ model: provider(model), prompt: SAY, schema: jsonSchema(schema), onError() {} });
    for await (const part of asked.fullStream) if (part.type === "error") throw part.error;
    return asked.object;
  },
});
