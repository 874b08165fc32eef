// The door: asked for only when the gateway wants a key.

import { key } from "./api.js";
import { byId, put, show } from "./dom.js";

const WHY = {
  invalid_api_key: "This page shows what is in the queue, and can change it.",
  operator_key_required: "That key is valid, but not an operator's.",
};

/** Buttons; once. `opened` hears of a new key, `closed` of one that was forgotten. */
export function wireGate(opened, closed) {
  const open = () => {
    const secret = byId("gate-key").value.trim();
    if (!secret) {
      put(byId("gate-error"), "Enter a key: it begins with sf-.");
      byId("gate-key").focus();
      return;
    }
    if (!/^[\x21-\x7e]+$/.test(secret)) {
      put(byId("gate-error"), "That is no key: it has letters, digits, - and _ only, and no spaces.");
      return;
    }
    key.set(secret);
    put(byId("gate-error"), "");
    opened();
  };
  byId("gate-form").addEventListener("submit", (event) => {
    event.preventDefault();
    open();
  });
  byId("forget").addEventListener("click", () => {
    key.forget();
    closed();
  });
}

/** Shows the door, with the reason why a key that was given did not open it. */
export function showGate(trouble) {
  const tried = key.get() !== "";
  key.forget();
  show(byId("forget"), false);
  const shown = !byId("gate").hidden;
  put(byId("gate-why"), WHY[trouble?.code] ?? WHY.invalid_api_key);
  put(byId("gate-error"), tried && trouble ? trouble.message : "");
  show(byId("gate"), true);
  byId("gate-key").value = "";
  if (!shown || tried) byId("gate-key").focus();
}

/** The door is open. */
export function hideGate() {
  show(byId("gate"), false);
  show(byId("forget"), key.get() !== "");
}
