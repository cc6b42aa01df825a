import { HoldfastError } from "../core/text/errors.ts";
import type { Engine } from "./engine.ts";

/** An open database. The registry is on globalThis, so that a hot reload or a second copy of this package shares it. */
interface Shared {
  opened: Promise<Engine>;
  users: number;
  /** Set by the last user to leave. A caller that opens meanwhile waits: another driver must not touch the file before. */
  closing?: Promise<void>;
}
const REGISTRY = Symbol.for("holdfast.open");
const registry = ((globalThis as Record<symbol, unknown>)[REGISTRY] ??= createRegistry()) as Map<string, Shared>;

function createRegistry(): Map<string, Shared> {
  // Close for a program that ends without closing, so that it does not count as crashed.
  process.on("beforeExit", () => void closeAll().catch(() => {}));
  return new Map();
}

/** Returns this process's open engine of a database, or the one that `start` makes. Each caller must leave it. */
export async function sharedEngine(
  key: string,
  start: () => Promise<Engine>,
): Promise<{ engine: Engine; leave: () => Promise<void> }> {
  for (let last = registry.get(key); last?.closing !== undefined; last = registry.get(key)) {
    await last.closing.catch(() => {});
  }
  const shared = registry.get(key) ?? { opened: start(), users: 0 };
  registry.set(key, shared);
  // Count this user before anything is awaited, so that a user that closes meanwhile is not the last.
  shared.users++;
  const engine = await shared.opened.catch((error: unknown) => {
    if (registry.get(key) === shared) registry.delete(key);
    throw error;
  });
  return { engine, leave: () => leave(key, shared, engine) };
}

async function leave(key: string, shared: Shared, engine: Engine): Promise<void> {
  if (--shared.users > 0) return;
  shared.closing ??= closeEngine(key, shared, engine);
  await shared.closing;
}

function closeEngine(key: string, shared: Shared, engine: Engine): Promise<void> {
  return engine.close().finally(() => {
    if (registry.get(key) === shared) registry.delete(key);
  });
}

/** @internal Closes everything that this process has open, whatever uses it. */
export async function closeAll(): Promise<void> {
  await Promise.all([...registry].map(([key, shared]) => close(key, shared)));
}

async function close(key: string, shared: Shared): Promise<void> {
  const engine = await shared.opened.catch(() => null);
  if (engine !== null) await (shared.closing ??= closeEngine(key, shared, engine));
}

/** Signals that stop this process in good order. Closing a terminal (SIGHUP) ends every Node program, `nohup` or not. */
export const STOP_SIGNALS = ["SIGHUP", "SIGINT", "SIGTERM"] as const;
const EXIT_CODES: Partial<Record<NodeJS.Signals, number>> = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 };

/** Whether a second signal ends the process at once. A closed terminal sends SIGHUP twice, by its kernel and by its shell. */
export function forcesExit(signal: NodeJS.Signals): boolean {
  return signal !== "SIGHUP";
}

const stoppers = new Set<() => Promise<void>>();
let stopping = false;

/** Calls `stop` at the first signal, and exits at once at the second. The returned function unsubscribes. */
export function onSignals(stop: () => Promise<void>): () => void {
  if (stoppers.size === 0) for (const signal of STOP_SIGNALS) process.on(signal, onSignal);
  stoppers.add(stop);
  return () => {
    stoppers.delete(stop);
    if (stoppers.size === 0 && !stopping) for (const signal of STOP_SIGNALS) process.off(signal, onSignal);
  };
}

function onSignal(signal: NodeJS.Signals): void {
  const code = EXIT_CODES[signal] ?? 143;
  if (stopping && forcesExit(signal)) process.exit(code);
  if (stopping) return;
  stopping = true;
  process.on("uncaughtException", onUncaught);
  void stopAll().then((isClean) => process.exit(isClean ? code : 1));
}

/** Stops handles that listen to signals, then closes the others: a process that exits with one open counts as crashed. */
async function stopAll(): Promise<boolean> {
  const ends = await Promise.allSettled([...stoppers].map((stop) => stop()));
  const [closed] = await Promise.allSettled([closeAll()]);
  return [...ends, closed].every(({ status }) => status === "fulfilled");
}

/** Ignores CLOSED while a signal stops everything: an enqueue that gets it must not end the process before all is closed. */
function onUncaught(error: unknown): void {
  if (error instanceof HoldfastError && error.code === "CLOSED") return;
  if (process.listenerCount("uncaughtException") > 1) return;
  console.error("Uncaught", error);
  process.exit(1);
}
