// Tells people who hear the page, and shows for a while what was done.

import { byId, put } from "./dom.js";

let timer = 0;

/** Say what changed; `bad` for what did not work, which stays longer. */
export function say(text, bad = false) {
  put(byId("said"), text);
  byId("said").classList.toggle("bad", bad);
  clearTimeout(timer);
  timer = setTimeout(() => put(byId("said"), ""), bad ? 12_000 : 6_000);
}

/** Only for those who hear it. */
export function whisper(text) {
  put(byId("whispered"), text);
}
