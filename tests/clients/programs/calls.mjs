// What the programs for Node are made of: their calls, and `{"call": …, "error": …}` for each outcome.

export const { CLIENTS_URL: baseURL, CLIENTS_KEY: apiKey, CLIENTS_MODEL: model } = process.env;
export const { CLIENTS_EMBEDDER: embedder, CLIENTS_TOLD: told } = process.env;
export const SAY = "Say hi";
export const schema = {
  type: "object",
  properties: { warm: { type: "boolean" } },
  required: ["warm"],
  additionalProperties: false,
};

// Make the calls; each returns something that is not empty, or throws.
export async function run(calls) {
  for (const [name, ask] of Object.entries(calls)) {
    let error = null;
    try {
      const answer = await ask();
      if (!answer) throw new Error(`an empty answer: ${JSON.stringify(answer)}`);
    } catch (raised) {
      console.error(raised);
      error = `${raised.name}: ${raised.message}`.slice(0, 500);
    }
    console.log(JSON.stringify({ call: name, error }));
  }
}
