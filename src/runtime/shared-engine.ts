import type { Engine } from "./engine.ts";

/** Open databases of this process, by their location's key. Kept on globalThis, so that a hot reload or a second copy of this package shares them. */
interface Shared {
  opened: Promise<Engine>;
  users: number;
  /** Set by the last to leave: whoever opens meanwhile waits, since another driver must not touch the file before. */
  closing?: Promise<void>;
}
const REGISTRY = Symbol.for("holdfast.open");
const registry = ((globalThis as Record<symbol, unknown>)[REGISTRY] ??= begun()) as Map<string, Shared>;

function begun(): Map<string, Shared> {
  process.on("beforeExit", goodbye);
  return new Map();
}

/** The engine of a database in this process: the one that is there, or that `start` makes. Whoever has it leaves it in the end. */
export async function sharedEngine(
  key: string,
  start: () => Promise<Engine>,
): Promise<{ engine: Engine; leave: () => Promise<void> }> {
  for (let last = registry.get(key); last?.closing !== undefined; last = registry.get(key)) {
    await last.closing.catch(() => {});
  }
  const shared = registry.get(key) ?? { opened: start(), users: 0 };
  registry.set(key, shared);
  // Counted before anything is waited for, so that whoever closes meanwhile is not the last.
  shared.users++;
  const engine = await shared.opened.catch((error: unknown) => {
    if (registry.get(key) === shared) registry.delete(key);
    throw error;
  });
  return { engine, leave: () => leave(key, shared, engine) };
}

async function leave(key: string, shared: Shared, engine: Engine): Promise<void> {
  if (--shared.users > 0) return;
  shared.closing ??= end(key, shared, engine);
  await shared.closing;
}

function end(key: string, shared: Shared, engine: Engine): Promise<void> {
  return engine.close().finally(() => {
    if (registry.get(key) === shared) registry.delete(key);
  });
}

/** A program that has nothing more to do, and closed nothing, says goodbye all the same: it has not crashed. */
function goodbye(): void {
  closeAll().catch(() => {});
}

/** @internal Everything that this process has open, whoever uses it. */
export async function closeAll(): Promise<void> {
  await Promise.all([...registry].map(([key, shared]) => close(key, shared)));
}

async function close(key: string, shared: Shared): Promise<void> {
  const engine = await shared.opened.catch(() => null);
  if (engine !== null) await (shared.closing ??= end(key, shared, engine));
}
