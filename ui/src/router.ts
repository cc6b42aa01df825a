import { computed, signal } from "@preact/signals";
import { type Query, queryText } from "./api.ts";

export interface Address {
  page: string;
  /** Of a job or a build. */
  id: string | null;
  query: Record<string, string>;
}

const hash = signal(location.hash);
let isHeadingDue = false;
window.addEventListener("hashchange", () => {
  hash.value = location.hash;
  isHeadingDue = true;
});

/** True once after the page has changed: its heading takes the focus, so that a screen reader says it. */
export function takeHeadingFocus(): boolean {
  const isDue = isHeadingDue;
  isHeadingDue = false;
  return isDue;
}

/** The page and its filters, as they are in the address: `#/jobs?state=failed`. */
export const address = computed<Address>(() => {
  const [path = "", query = ""] = hash.value.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/");
  return {
    page: page === "" ? "overview" : page,
    id: rest.length === 0 ? null : decoded(rest.join("/")),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
});

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function hrefOf(page: string, query: Query = {}, id?: string): string {
  const text = queryText(query);
  return `#/${page === "overview" ? "" : page}${id === undefined ? "" : `/${encodeURIComponent(id)}`}${text === "" ? "" : `?${text}`}`;
}

export function go(href: string): void {
  location.hash = href;
}

/** Changes filters of the page that is shown. Typing does not fill the history. */
export function setQuery(changes: Query): void {
  const { page, id, query } = address.value;
  const href = hrefOf(page, { ...query, ...changes }, id ?? undefined);
  history.replaceState(null, "", href);
  hash.value = href;
}
