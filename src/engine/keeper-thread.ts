import { parentPort, workerData } from "node:worker_threads";
import type { ProcessId } from "../core/text/ids.ts";
import type { WalView } from "../core/recovery/loss.ts";
import { LeaseTable, Keeper, LeaseWatch, type Loss, NEVER, type TimedOut } from "./leases.ts";
import { BEAT, type HeartbeatMessage } from "./maintenance/heartbeats.ts";
import { type DescribedError, describeError } from "./log.ts";
import type { LockToken } from "../store/builds.ts";
import type { StoreLocation } from "../store/open-store.ts";
import type { Store } from "../store/store.ts";
import { systemClock } from "./host.ts";

/** How often it looks at the shared table, in milliseconds. */
const TICK = 30;
/** The same while nothing is held: less often, because waking a sleeping process costs more than the look itself. */
const IDLE_TICK = 500;
/** The same where leases are short: the shortest is 300 ms, and due to be renewed after a third. */
const ALERT_TICK = 90;
/**
 * A server is asked for the first time when something has been held for this long, in milliseconds: not where all jobs are
 * quick. To load what it takes and to connect costs as much as thousands of them, just when a worker starts.
 */
const HELD_FOR_LONG = 200;
/** A long write-ahead log is reported at most this often, in milliseconds. */
const TOLD_AGAIN = 60_000;

export interface KeeperThreadData {
  location: StoreLocation;
  process: ProcessId;
  leaseTable: SharedArrayBuffer;
  alert: boolean;
}
export type ToKeeper = "alert" | "close" | HeartbeatMessage;
export type FromKeeper =
  /** It watches over leases, and opens the store as soon as there is need. */
  | { type: "awake" }
  /** The store is open. */
  | { type: "ready" }
  | { type: "loss"; loss: Loss }
  | { type: "timed-out"; timedOut: TimedOut }
  | { type: "lead-lost"; token: string }
  | { type: "closed" }
  /** The write-ahead log has grown long. */
  | { type: "long-wal"; wal: WalView }
  | { type: "trouble"; trouble: DescribedError };

const port = parentPort as NonNullable<typeof parentPort>;
const data = workerData as KeeperThreadData;
const say = (message: FromKeeper) => port.postMessage(message);

const leaseTable = new LeaseTable(data.leaseTable);
const onLoss = (loss: Loss) => say({ type: "loss", loss });
const onTimedOut = (timedOut: TimedOut) => say({ type: "timed-out", timedOut });
// Before anything else: the server may be gone already.
const watch = new LeaseWatch({ leaseTable, clock: systemClock, onLoss });
watch.start();

/** The locks of the pipelines that this process leads. */
const leads = new Map<string, LockToken>();
const beats = setInterval(() => void beat(), BEAT);

let opened: { store: Store; keeper: Keeper } | null = null;
let closing = false;
let { alert } = data;
let tick: NodeJS.Timeout | undefined;
let rounds: Promise<void> | null = null;
let toldAt = Number.NEGATIVE_INFINITY;

port.on("message", (message: ToKeeper) => {
  if (message === "alert") {
    alert = true;
    void round();
  } else if (message === "close") void close();
  else if ("lead" in message) leads.set(message.lead.token, message.lead);
  else leads.delete(message.leave);
});

async function beat(): Promise<void> {
  for (const lock of leads.values()) {
    try {
      if (opened === null || (await opened.store.builds.beat(lock)) || !leads.delete(lock.token)) continue;
      say({ type: "lead-lost", token: lock.token });
    } catch (error) {
      say({ type: "trouble", trouble: describeError(error) });
    }
  }
}

async function open(): Promise<{ store: Store; keeper: Keeper }> {
  const { openStore } = await import("../store/open-store.ts");
  const store = await openStore(data.location, { clock: systemClock, injected: false, ownThread: true });
  store.processes.actAs(data.process);
  return { store, keeper: new Keeper({ store, leaseTable, clock: store.clock, onLoss, onTimedOut }) };
}

/** Files are cared for here, from the beginning; so are the locks of pipelines. */
function isNeeded(): boolean {
  if (data.location.kind === "sqlite" || alert || leads.size > 0) return true;
  const now = systemClock.monotonic();
  for (const { since } of leaseTable.all()) if (now - since >= HELD_FOR_LONG) return true;
  return false;
}

async function close(): Promise<void> {
  closing = true;
  clearTimeout(tick);
  clearInterval(beats);
  await rounds?.catch(() => {});
  if (opened !== null) {
    await opened.keeper.round().catch(() => {});
    await opened.store.close();
  }
  watch.stop();
  say({ type: "closed" });
  // Deno's port has no `close`. Exiting ends this thread only.
  if ("close" in port) port.close();
  else process.exit();
}

/** One at a time. */
function round(): Promise<void> {
  clearTimeout(tick);
  rounds ??= run().finally(() => {
    rounds = null;
    if (!closing) tick = setTimeout(() => void round(), pause());
  });
  return rounds;
}

async function run(): Promise<void> {
  if (opened === null) {
    if (!isNeeded()) return;
    // Where it cannot be, this thread ends, and another is started.
    opened = await open();
    say({ type: "ready" });
  }
  try {
    await opened.keeper.round();
    const wal = closing ? null : await opened.store.maintenance.run();
    if (wal !== null) tellOf(wal);
  } catch (error) {
    say({ type: "trouble", trouble: describeError(error) });
  }
}

/** Not each time: the log stays long for as long as a reader keeps an old state open. */
function tellOf(wal: WalView): void {
  const now = systemClock.monotonic();
  if (now - toldAt < TOLD_AGAIN) return;
  toldAt = now;
  say({ type: "long-wal", wal });
}

function pause(): number {
  if (opened === null && alert) return 0;
  const holds = opened === null ? !leaseTable.all().next().done : opened.keeper.nextAt() !== NEVER;
  return holds ? TICK : alert ? ALERT_TICK : IDLE_TICK;
}

if (!isNeeded()) say({ type: "awake" });
void round();
