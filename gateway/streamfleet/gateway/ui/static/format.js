// Values as people read them. Pure.

const counts = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const EMPTY = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 12,345 */
export const count = (value) => (known(value) ? counts.format(value) : EMPTY);

/** 0.4, 12, 1.2k: a rate or another figure in little room. */
export function short(value) {
  if (!known(value)) return EMPTY;
  const size = Math.abs(value);
  if (size >= 9_999_500) return `${counts.format(value / 1e6)}M`;
  if (size >= 999_500) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 9_950) return `${counts.format(value / 1e3)}k`;
  if (size >= 995) return `${(value / 1e3).toFixed(1)}k`;
  return size >= 9.95 || size === 0 ? counts.format(value) : value.toFixed(1);
}

/** 850 ms, 3.2 s, 4 min 10 s, 2 h 5 min, 3 d 4 h; negative spans keep their sign. */
export function span(seconds) {
  if (!known(seconds)) return EMPTY;
  const size = Math.abs(seconds);
  const sign = seconds < 0 && size >= 0.0005 ? "−" : "";
  if (size < 0.9995) return `${sign}${Math.round(size * 1000)} ms`;
  if (size < 9.95) return `${sign}${size.toFixed(1)} s`;
  if (size < 59.5) return `${sign}${Math.round(size)} s`;
  if (size < 3_599.5) return sign + pair(Math.round(size), 60, "min", "s");
  if (size < 86_370) return sign + pair(Math.round(size / 60), 60, "h", "min");
  return sign + pair(Math.round(size / 3600), 24, "d", "h");
}

function pair(total, per, large, small) {
  const rest = total % per;
  return rest ? `${Math.floor(total / per)} ${large} ${rest} ${small}` : `${Math.floor(total / per)} ${large}`;
}

/** 512 B, 3.4 KiB, 12 MiB */
export function bytes(value) {
  if (!known(value)) return EMPTY;
  if (value < 1024) return `${value} B`;
  const [size, unit] = value < 1024 ** 2 ? [value / 1024, "KiB"] : [value / 1024 ** 2, "MiB"];
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${unit}`;
}

const two = (value, digits = 2) => String(value).padStart(digits, "0");

/** 14:03:22.481, with its day where that is not today. */
export function moment(ms, now = Date.now()) {
  if (!known(ms) || Math.abs(ms) > 8.64e15) return EMPTY;
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return at.toDateString() === new Date(now).toDateString() ? time : `${day} ${time}`;
}

/** One of something, or many. */
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

/** Control characters and those that turn the writing direction, made visible: what is read is what is there. */
export function visible(text) {
  return String(text).replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (char) => `\\u${two(char.charCodeAt(0).toString(16), 4)}`,
  );
}

/** Tokens of one request, in words. */
export function tokensText({ prompt_tokens, cached_tokens, completion_tokens }) {
  const cached = cached_tokens ? ` (${count(cached_tokens)} of them cached)` : "";
  return `${count(prompt_tokens)} in${cached}, ${count(completion_tokens ?? 0)} out`;
}
