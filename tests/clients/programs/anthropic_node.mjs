// Anthropic's SDK for Node.

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { SAY, apiKey, baseURL, model, run, schema, told } from "./calls.mjs";

const client = new Anthropic({ baseURL: baseURL.replace("/v1", ""), apiKey });
const messages = [{ role: "user", content: SAY }];
const asked = { model, messages, max_tokens: 24 };
const tools = [{ name: "weather", description: "The weather of a city", input_schema: schema }];
const forced = { model, messages, max_tokens: 200, tools, tool_choice: { type: "tool", name: "weather" } };
const used = (message) => message.content.find((block) => block.type === "tool_use");

await run({
  models: async () => {
    for await (const each of client.models.list()) if (each.id === model) return each.id;
  },
  message: async () => (await client.messages.create(asked)).content[0].text,
  "message streamed": async () => {
    let said = "";
    for await (const event of await client.messages.create({ ...asked, stream: true }))
      if (event.type === "content_block_delta") said += event.delta.text;
    return said;
  },
  "message streamed and put together": async () => (await client.messages.stream(asked).finalMessage()).content[0].text,
  "tool and its result": async () => {
    const { content } = await client.messages.create(forced);
    const result = { type: "tool_result", tool_use_id: used({ content }).id, content: "It is warm" };
    const turns = [...messages, { role: "assistant", content }, { role: "user", content: [result] }];
    return (await client.messages.create({ ...asked, messages: turns, tools })).content;
  },
  "tool streamed": async () => "warm" in used(await client.messages.stream(forced).finalMessage()).input,
  "tool that runs": async () => {
    const weather = betaTool({ name: "weather", description: "The weather", inputSchema: schema, run: ({ warm }) => `warm: ${warm}` });
    const turns = [{ role: "user", content: 'call weather {"warm":true}' }];
    const last = await client.beta.messages.toolRunner({ model: told, messages: turns, max_tokens: 24, tools: [weather] });
    return last.content[0].text.includes("warm: true");
  },
  "tokens counted": async () => (await client.messages.countTokens({ model, messages, tools })).input_tokens,
  batches: async () => {
    const { id } = await client.messages.batches.create({ requests: [{ custom_id: "a", params: asked }] });
    const until = Date.now() + 60_000;
    while ((await client.messages.batches.retrieve(id)).processing_status !== "ended" && Date.now() < until)
      await new Promise((resolve) => setTimeout(resolve, 500));
    const texts = [];
    for await (const { result } of await client.messages.batches.results(id)) texts.push(result.message.content[0].text);
    await client.messages.batches.delete(id);
    return texts.join();
  },
  "error of the model": async () => {
    const error = await client.messages.create({ ...asked, model: "none" }).catch((raised) => raised);
    return error instanceof Anthropic.NotFoundError && error.message.includes("none") && error.requestID;
  },
});
