// Which part of the page, which request and which queue: all in the address's fragment, so that links can be shared.

const VIEWS = ["fleet", "requests", "dead"];

/** `#/requests/r-42?queue=small` as `{ view, id, queue }`; whatever is no such thing is the first view. */
export function parse(fragment) {
  const [path, query = ""] = fragment.replace(/^#\/?/, "").split("?", 2);
  const [view, ...rest] = path.split("/");
  const queue = new URLSearchParams(query).get("queue") ?? "";
  if (!VIEWS.includes(view)) return { view: VIEWS[0], id: "", queue };
  return { view, id: decoded(rest.join("/")), queue };
}

/** The other way round. */
export function fragment(view, id = "", queue = "") {
  const path = id ? `#/${view}/${encodeURIComponent(id)}` : `#/${view}`;
  return queue ? `${path}?${new URLSearchParams({ queue })}` : path;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
