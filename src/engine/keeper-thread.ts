import { parentPort, workerData } from "node:worker_threads";
import type { ProcessId } from "../core/text/ids.ts";
import type { WalView } from "../core/recovery/loss.ts";
import { LeaseTable, Keeper, LeaseWatch, type Loss, NEVER, type TimedOut } from "./leases.ts";
import { HEARTBEAT_MS, type HeartbeatMessage } from "./maintenance/heartbeats.ts";
import { type DescribedError, describeError } from "./log.ts";
import type { LockToken } from "../store/builds.ts";
import type { StoreLocation } from "../store/open-store.ts";
import type { Store } from "../store/store.ts";
import { systemClock } from "./host.ts";

const TICK_MS = 30;
/** Interval while nothing is held, because waking a sleeping process costs more than the check itself. */
const IDLE_TICK_MS = 500;
/** Interval while leases may be short: the shortest lease is 300 ms, and is renewed after a third of it. */
const ALERT_TICK_MS = 90;
/** The thread connects to PostgreSQL after a lease was held this long: connecting costs as much as thousands of quick jobs. */
const LONG_HOLD_MS = 200;
const WAL_REPORT_INTERVAL_MS = 60_000;

export interface KeeperThreadData {
  location: StoreLocation;
  process: ProcessId;
  leaseTable: SharedArrayBuffer;
  alert: boolean;
}
export type ToKeeper = "alert" | "close" | HeartbeatMessage;
export type FromKeeper =
  /** The thread watches leases, and opens the store when one needs it. */
  | { type: "awake" }
  | { type: "ready" }
  | { type: "loss"; loss: Loss }
  | { type: "timed-out"; timedOut: TimedOut }
  | { type: "orchestrator-lock-lost"; token: string }
  | { type: "long-wal"; wal: WalView }
  | { type: "failed"; failure: DescribedError };

const port = parentPort as NonNullable<typeof parentPort>;
const data = workerData as KeeperThreadData;
const send = (message: FromKeeper) => port.postMessage(message);

const leaseTable = new LeaseTable(data.leaseTable);
const onLoss = (loss: Loss) => send({ type: "loss", loss });
const onTimedOut = (timedOut: TimedOut) => send({ type: "timed-out", timedOut });
// Watch before anything else, because the server may be unreachable already.
const watch = new LeaseWatch({ leaseTable, clock: systemClock, onLoss });
watch.start();

const orchestratorLocks = new Map<string, LockToken>();
const beats = setInterval(() => void beat(), HEARTBEAT_MS);

/** Published thread code has no other part of a store. */
type KeeperStore = Pick<Store, "builds" | "clock" | "close" | "inspect" | "maintenance" | "processes" | "renew" | "settle">;

let opened: { store: KeeperStore; keeper: Keeper } | null = null;
let closing = false;
let { alert } = data;
let tick: NodeJS.Timeout | undefined;
let currentRound: Promise<void> | null = null;
let walReportedAt = Number.NEGATIVE_INFINITY;

port.on("message", (message: ToKeeper) => {
  if (message === "alert") {
    alert = true;
    void round();
  } else if (message === "close") void close();
  else if ("hold" in message) orchestratorLocks.set(message.hold.token, message.hold);
  else orchestratorLocks.delete(message.release);
});

async function beat(): Promise<void> {
  for (const lock of orchestratorLocks.values()) {
    try {
      if (opened === null || (await opened.store.builds.beat(lock)) || !orchestratorLocks.delete(lock.token)) continue;
      send({ type: "orchestrator-lock-lost", token: lock.token });
    } catch (error) {
      send({ type: "failed", failure: describeError(error) });
    }
  }
}

async function open(): Promise<NonNullable<typeof opened>> {
  const { openStore } = await import("../store/open-store.ts");
  const store: KeeperStore = await openStore(data.location, { clock: systemClock, injected: false, ownThread: true });
  store.processes.self = data.process;
  return { store, keeper: new Keeper({ store, leaseTable, clock: store.clock, onLoss, onTimedOut }) };
}

function isNeeded(): boolean {
  if (data.location.kind === "sqlite" || alert || orchestratorLocks.size > 0) return true;
  const now = systemClock.monotonic();
  for (const { since } of leaseTable.all()) if (now - since >= LONG_HOLD_MS) return true;
  return false;
}

async function close(): Promise<void> {
  closing = true;
  clearTimeout(tick);
  clearInterval(beats);
  await currentRound?.catch(() => {});
  if (opened !== null) {
    await opened.keeper.round().catch(() => {});
    await opened.store.close();
  }
  watch.stop();
  // Deno's port has no `close`. `exit` ends this thread only.
  if ("close" in port) port.close();
  else process.exit();
}

function round(): Promise<void> {
  clearTimeout(tick);
  currentRound ??= run().finally(() => {
    currentRound = null;
    if (!closing) tick = setTimeout(() => void round(), nextPauseMs());
  });
  return currentRound;
}

async function run(): Promise<void> {
  if (opened === null) {
    if (!isNeeded()) return;
    // If this fails, the thread ends, and the engine starts another.
    opened = await open();
    send({ type: "ready" });
  }
  try {
    await opened.keeper.round();
    const wal = closing ? null : await opened.store.maintenance.run();
    if (wal !== null) reportWal(wal);
  } catch (error) {
    send({ type: "failed", failure: describeError(error) });
  }
}

/** Reports a long log at most once a minute, because it stays long while a reader keeps an old state open. */
function reportWal(wal: WalView): void {
  const now = systemClock.monotonic();
  if (now - walReportedAt < WAL_REPORT_INTERVAL_MS) return;
  walReportedAt = now;
  send({ type: "long-wal", wal });
}

function nextPauseMs(): number {
  if (opened === null && alert) return 0;
  const holds = opened === null ? !leaseTable.all().next().done : opened.keeper.nextAt() !== NEVER;
  return holds ? TICK_MS : alert ? ALERT_TICK_MS : IDLE_TICK_MS;
}

if (!isNeeded()) send({ type: "awake" });
void round();
