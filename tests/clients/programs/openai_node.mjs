// OpenAI's SDK for Node.

import OpenAI from "openai";
import { SAY, apiKey, baseURL, embedder, model, run, schema } from "./calls.mjs";

const messages = [{ role: "user", content: SAY }];
const client = new OpenAI({ baseURL, apiKey });

await run({
  models: async () => (await client.models.list()).data.map((each) => each.id).includes(model),
  chat: async () =>
    (await client.chat.completions.create({ model, messages, max_tokens: 24 })).choices[0].message.content,
  "chat streamed": async () => {
    let said = "";
    const asked = await client.chat.completions.create({ model, messages, max_tokens: 24, stream: true });
    for await (const chunk of asked) said += chunk.choices[0].delta.content ?? "";
    return said;
  },
  tool: async () => {
    const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];
    const asked = await client.chat.completions.create({ model, messages, tools, tool_choice: "required" });
    return JSON.parse(asked.choices[0].message.tool_calls[0].function.arguments);
  },
  embeddings: async () => (await client.embeddings.create({ model: embedder, input: ["a cat"] })).data[0].embedding,
  "error of the model": async () => {
    const error = await client.chat.completions.create({ model: "none", messages }).catch((raised) => raised);
    return error instanceof OpenAI.NotFoundError && error.message.includes("none") && error.code;
  },
  response: async () =>
    (await client.responses.create({ model, input: SAY, max_output_tokens: 24 })).output_text,
  "response streamed": async () => {
    let last;
    const asked = await client.responses.create({ model, input: SAY, max_output_tokens: 24, stream: true });
    for await (const event of asked) last = event.type;
    return last === "response.completed";
  },
  "response with a tool": async () => {
    const tools = [{ type: "function", name: "weather", parameters: schema, strict: true }];
    const asked = client.responses.stream({ model, input: SAY, tools, tool_choice: "required" });
    return JSON.parse((await asked.finalResponse()).output[0].arguments);
  },
});
