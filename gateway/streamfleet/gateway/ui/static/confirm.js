// A question before what cannot be taken back.

import { byId, put } from "./dom.js";

/** True when the person agreed. */
export function confirmed({ title, text, action }) {
  const dialog = byId("confirm");
  put(byId("confirm-title"), title);
  put(byId("confirm-text"), text);
  put(byId("confirm-yes"), action);
  return new Promise((done) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
    byId("confirm-no").focus();
  });
}

/** Buttons of the dialog; once, at the start. */
export function wireConfirm() {
  byId("confirm-yes").addEventListener("click", () => byId("confirm").close("yes"));
  byId("confirm-no").addEventListener("click", () => byId("confirm").close("no"));
}
