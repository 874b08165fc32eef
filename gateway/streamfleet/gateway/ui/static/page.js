// What the parts of the page share: which queue is shown, and links into it.

import { fragment } from "./route.js";

export const page = {
  /** As named in the address; empty for the gateway's first. */
  queue: "",
  /** The newest overview; null before the first. */
  overview: null,
  /** Asks for an overview at once; set at the start. */
  refresh: () => {},
  /** Hears of an answer that is none; set at the start. */
  trouble: () => {},
};

export const link = (view, id = "") => fragment(view, id, page.queue);

/** Runs what a button does: it cannot be pressed twice meanwhile, and troubles are told. */
export async function act(button, work) {
  if (button.getAttribute("aria-busy") === "true") return;
  button.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (error) {
    page.trouble(error);
  } finally {
    button.removeAttribute("aria-busy");
  }
}
