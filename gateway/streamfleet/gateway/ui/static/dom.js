// Making and changing elements. All text goes in as text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, listeners (`onclick: f`) and children; null and undefined are left out. */
export function el(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same in SVG. */
export function svg(tag, given = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(node, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Sets a text only where it changed, so that a selection in it stays. */
export function put(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Sets or removes an attribute, only where it changed. */
export function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
}

/** Shows or hides. */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/**
 * Brings the children of `parent` in line with `items` without touching those that stay: the focus, a selection and
 * the place in a list survive an update.
 */
export function keyed(parent, items, keyOf, make, update) {
  const had = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = had.get(key);
    if (node) had.delete(key);
    else {
      node = make(item);
      node.dataset.key = key;
    }
    update(node, item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const node of had.values()) {
    if (node.contains(document.activeElement)) focusNear(node);
    node.remove();
  }
}

/** Before a row with the focus goes: the focus moves to its neighbour, or to the heading of its part. */
function focusNear(node) {
  const near = node.nextElementSibling ?? node.previousElementSibling;
  const next = near?.querySelector("button, a[href], input") ?? node.closest("section")?.querySelector("h2, h3");
  if (!next) return;
  if (/^H[23]$/.test(next.tagName)) next.tabIndex = -1;
  next.focus();
}

/** Parts of a row by their `data-part`. */
export function part(node, name) {
  return node.querySelector(`[data-part="${name}"]`);
}
