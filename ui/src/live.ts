import { effect, signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ApiError, read, serverNow } from "./api.ts";

/** What is shown is read at most this often. */
const MIN_INTERVAL_MS = 1_000;
/** Processes die, and time passes, without a commit. */
const IDLE_INTERVAL_MS = 5_000;
/** A read that takes long is repeated less often, so that a page takes at most this share of the server's time. */
const MAX_SHARE = 0.1;
const MAX_INTERVAL_MS = 30_000;
const RECONNECT_MS = 3_000;

export type Connection = "connecting" | "live" | "paused" | "lost" | "denied";
export const connection = signal<Connection>("connecting");
/** When a read last succeeded, in the server's time. */
export const readAt = signal<number | null>(null);
/** The server's time, once a second. */
export const now = signal(serverNow());
/** Changes when everything that is shown is to be read again. */
const beat = signal(0);

let source: EventSource | null = null;
let timer: number | null = null;
let reopening: number | null = null;
let lastBeat = 0;
let intervalMs = MIN_INTERVAL_MS;

/** Reads everything that is shown again, now. */
export function refresh(): void {
  if (timer !== null) clearTimeout(timer);
  timer = null;
  lastBeat = performance.now();
  beat.value++;
}

function refreshSoon(): void {
  timer ??= window.setTimeout(refresh, Math.max(0, lastBeat + intervalMs - performance.now()));
}

function listen(): void {
  source?.close();
  const opened = new EventSource("api/v1/changes");
  source = opened;
  opened.addEventListener("open", () => {
    connection.value = "live";
    refreshSoon();
  });
  opened.addEventListener("change", refreshSoon);
  opened.addEventListener("error", () => {
    if (source !== opened) return;
    if (connection.value !== "denied") connection.value = "lost";
    // The browser reconnects by itself, but not after an answer that is an error.
    if (opened.readyState !== EventSource.CLOSED) return;
    reopening ??= window.setTimeout(() => {
      reopening = null;
      if (!document.hidden) listen();
    }, RECONNECT_MS);
  });
}

function onVisibility(): void {
  if (document.hidden) {
    source?.close();
    source = null;
    connection.value = "paused";
    if (timer !== null) clearTimeout(timer);
    timer = null;
  } else {
    now.value = serverNow();
    connection.value = "connecting";
    listen();
    refresh();
  }
}

/** Follows the server's commits while the page is visible. */
export function follow(): void {
  document.addEventListener("visibilitychange", onVisibility);
  setInterval(() => {
    if (!document.hidden) now.value = serverNow();
  }, 1_000);
  setInterval(() => {
    if (!document.hidden) refreshSoon();
  }, IDLE_INTERVAL_MS);
  onVisibility();
}

export interface Reading<T> {
  data: T | null;
  error: ApiError | null;
}

const NOTHING_READ: Reading<never> = { data: null, error: null };

/**
 * Reads an address of the API, and again after commits, but not before `pauseMs` have passed. After an error the last answer stays.
 * Null reads nothing.
 */
export function useRead<T>(path: string | null, pauseMs = 0): Reading<T> {
  const state = useMemo(() => signal<Reading<T>>(NOTHING_READ), [path]);
  const pause = useRef(pauseMs);
  pause.current = pauseMs;
  useEffect(() => {
    if (path === null) return;
    const ended = new AbortController();
    let isReading = false;
    let isDue = false;
    let begunAt = Number.NEGATIVE_INFINITY;
    const load = async () => {
      isDue = isReading;
      if (isReading || performance.now() < begunAt + pause.current) return;
      isReading = true;
      begunAt = performance.now();
      try {
        state.value = { data: await timedRead<T>(path, ended.signal), error: null };
      } catch (error) {
        if (!ended.signal.aborted && error instanceof ApiError) state.value = { data: state.peek().data, error };
      }
      isReading = false;
      if (isDue && !ended.signal.aborted) refreshSoon();
    };
    const stop = effect(() => {
      void beat.value;
      void load();
    });
    return () => {
      stop();
      ended.abort();
    };
  }, [path]);
  return state.value;
}

/** Reads, and notes how long it took and whether the server answers. */
export async function timedRead<T>(path: string, signal: AbortSignal): Promise<T> {
  const begun = performance.now();
  try {
    const answer = await read<T>(path, signal);
    intervalMs = Math.min(MAX_INTERVAL_MS, Math.max(MIN_INTERVAL_MS, (performance.now() - begun) / MAX_SHARE));
    readAt.value = serverNow();
    if (connection.peek() === "denied") connection.value = "connecting";
    return answer;
  } catch (error) {
    if (error instanceof ApiError && error.code === "NO_ACCESS") connection.value = "denied";
    else if (error instanceof ApiError && error.code === "UNREACHABLE") connection.value = "lost";
    throw error;
  }
}

/** Calls back when everything that is shown is to be read again, but not at once. */
export function useBeat(run: () => void): void {
  useEffect(() => {
    let isFirst = true;
    return effect(() => {
      void beat.value;
      if (!isFirst) run();
      isFirst = false;
    });
  }, [run]);
}
