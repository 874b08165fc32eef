// What the gateway is asked. The key stays in this tab's storage, and goes nowhere but into the Authorization header.

const KEY = "streamfleet-operator-key";
const TIMEOUT_MS = 15_000;
const ASK_FOR_KEY = new Set(["invalid_api_key", "operator_key_required"]);

/** An answer that is none; `code` is the API's own, or `unreachable`. */
export class Trouble extends Error {
  constructor(message, { code = "unreachable", status = 0, retry_ms = 0 } = {}) {
    super(message);
    this.code = code;
    this.status = status;
    this.retry_ms = retry_ms;
  }

  get wantsKey() {
    return ASK_FOR_KEY.has(this.code);
  }

  /** Whether the same question may be answered later. */
  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (secret) => sessionStorage.setItem(KEY, secret),
  forget: () => sessionStorage.removeItem(KEY),
};

export const overview = (queue) => ask("overview", { queue });
export const search = (queue, wanted) => ask("requests", { queue, ...wanted });
export const request = (queue, id) => ask(`requests/${encodeURIComponent(id)}`, { queue });
export const deadLetters = (queue, before) => ask("dead", { queue, before, limit: 50 });
export const requeue = (queue, ids) => tell("dead/requeue", { queue, ids });
export const purge = (queue, ids) => tell("dead/purge", { queue, ids });
export const cancel = (queue, id) => tell(`requests/${encodeURIComponent(id)}/cancel`, { queue });
export const pause = (queue, lanes) => tell("pause", { queue, lanes });
export const resume = (queue, lanes) => tell("resume", { queue, lanes });

function ask(path, wanted) {
  const given = Object.entries(wanted).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return send(query ? `${path}?${query}` : path, { method: "GET" });
}

function tell(path, body) {
  const { queue, ...rest } = body;
  const known = queue ? { queue, ...rest } : rest;
  return send(path, { method: "POST", body: JSON.stringify(known), headers: { "Content-Type": "application/json" } });
}

async function send(path, { headers = {}, ...given }) {
  const secret = key.get();
  const authorization = secret ? { Authorization: `Bearer ${secret}` } : {};
  let answer;
  try {
    answer = await fetch(`/ui/api/${path}`, {
      ...given,
      headers: { Accept: "application/json", ...headers, ...authorization },
      credentials: "omit",
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Trouble(late ? "the gateway did not answer in 15 s" : "the gateway cannot be reached");
  }
  const said = await answer.json().catch(() => null);
  // Forgotten, or changed, while it was under way: the answer is for nobody any more.
  if (key.get() !== secret) throw new Trouble("the key has changed", { code: "key_changed" });
  if (!answer.ok) throw refusal(answer, said);
  if (said === null) throw new Trouble("the gateway sent something that is no JSON", { status: answer.status });
  return said;
}

function refusal(answer, said) {
  const error = said?.error ?? {};
  const after_s = Number(answer.headers.get("retry-after"));
  return new Trouble(error.message ?? `the gateway answered ${answer.status}`, {
    code: error.code ?? "unknown",
    status: answer.status,
    retry_ms: after_s > 0 ? Math.min(after_s, 30) * 1000 : 0,
  });
}
