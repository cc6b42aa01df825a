/** An answer of the API that is not what was asked for, or no answer. */
export class ApiError extends Error {
  readonly code: string;
  readonly hint: string;

  constructor(code: string, message: string, hint: string) {
    super(message);
    this.code = code;
    this.hint = hint;
  }
}

/** How far the server's clock is ahead of the browser's, in milliseconds. */
let skewMs = 0;
/** The header has whole seconds, so that a smaller difference means nothing. */
const MIN_SKEW_MS = 5_000;

export function serverNow(): number {
  return Date.now() + skewMs;
}

export type Query = Record<string, string | string[] | undefined>;

/** An address of the API with its query; empty values are left out. */
export function apiPath(path: string, query: Query = {}): string {
  const text = queryText(query);
  return `api/v1/${path}${text === "" ? "" : `?${text}`}`;
}

/** Ids that no path can name. */
const BEYOND_PATHS = new Set(["counts", ".", ".."]);

export function jobPath(id: string, what = ""): string {
  const encoded = encodeURIComponent(id);
  return BEYOND_PATHS.has(id) ? `jobs/-${what}?id=${encoded}` : `jobs/${encoded}${what}`;
}

export function queryText(query: Query): string {
  const params = new URLSearchParams();
  for (const [name, given] of Object.entries(query)) {
    for (const value of [given ?? []].flat()) if (value !== "") params.append(name, value);
  }
  return params.toString();
}

export function read<T>(path: string, signal?: AbortSignal): Promise<T> {
  return send<T>(path, signal === undefined ? {} : { signal });
}

export function write<T>(path: string, body?: unknown, method = "POST"): Promise<T> {
  return send<T>(`api/v1/${path}`, {
    method,
    headers: { "x-holdfast": "1", "content-type": "application/json" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
}

async function send<T>(path: string, init: RequestInit): Promise<T> {
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, { ...init, credentials: "same-origin", cache: "no-store" });
    text = await response.text();
  } catch (error) {
    if (init.signal?.aborted === true) throw error;
    throw new ApiError("UNREACHABLE", "The server does not answer.", "Check that `holdfast ui`, or your own server, still runs.");
  }
  const sentAt = Date.parse(response.headers.get("date") ?? "");
  if (!Number.isNaN(sentAt)) skewMs = Math.abs(sentAt - Date.now()) > MIN_SKEW_MS ? sentAt - Date.now() : 0;
  const answer = parsed(text);
  if (response.ok && answer !== undefined) return answer as T;
  const { error } = (answer ?? {}) as { error?: { code: string; message: string; hint: string } };
  throw new ApiError(
    error?.code ?? "NO_ANSWER",
    error?.message ?? `The server answered with status ${response.status}.`,
    error?.hint ?? "Check what stands between this page and the server, such as a proxy.",
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
