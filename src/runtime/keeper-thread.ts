import { parentPort, workerData } from "node:worker_threads";
import type { ProcessId } from "../core/ids.ts";
import type { LockToken } from "../store/builds.ts";
import { openStore, type StoreLocation } from "../store/open-store.ts";
import { Holdings, NEVER } from "./holdings.ts";
import { Keeper, type Loss } from "./keeper.ts";
import { BEAT, type LeadMessage } from "./leads.ts";
import { LeaseWatch } from "./lease-watch.ts";
import { systemClock } from "./system-clock.ts";

/** How often it looks at the shared table, in milliseconds. */
const TICK = 30;
/** The same while nothing is held: less often, because waking a sleeping process costs more than the look itself. */
const IDLE_TICK = 500;
/** The same where leases are short: the shortest is 300 ms, and due to be renewed after a third. */
const ALERT_TICK = 90;

export interface KeeperThreadData {
  location: StoreLocation;
  process: ProcessId;
  holdings: SharedArrayBuffer;
  alert: boolean;
}
export type ToKeeper = "alert" | "close" | LeadMessage;
export type FromKeeper =
  | { type: "ready" }
  | { type: "loss"; loss: Loss }
  | { type: "lead-lost"; token: string }
  | { type: "closed" }
  | { type: "trouble"; message: string };

const port = parentPort as NonNullable<typeof parentPort>;
const data = workerData as KeeperThreadData;
const say = (message: FromKeeper) => port.postMessage(message);

const holdings = new Holdings(data.holdings);
const onLoss = (loss: Loss) => say({ type: "loss", loss });
// Before anything else: the server may be gone already.
const watch = new LeaseWatch({ holdings, clock: systemClock, onLoss });
watch.start();

const store = await openStore(data.location, { clock: systemClock, injected: false, ownThread: true });
store.actAs(data.process);
const keeper = new Keeper({ store, holdings, clock: store.clock, onLoss });

let closing = false;
let { alert } = data;
let tick: NodeJS.Timeout | undefined;

port.on("message", (message: ToKeeper) => {
  if (message === "alert") {
    alert = true;
    clearTimeout(tick);
    void round();
  } else if (message === "close") void close();
  else if ("lead" in message) leads.set(message.lead.token, message.lead);
  else leads.delete(message.leave);
});

/** The locks of the pipelines that this process leads. */
const leads = new Map<string, LockToken>();
const beats = setInterval(() => void beat(), BEAT);

async function beat(): Promise<void> {
  for (const lock of leads.values()) {
    try {
      if ((await store.builds.beat(lock)) || !leads.delete(lock.token)) continue;
      say({ type: "lead-lost", token: lock.token });
    } catch (error) {
      say({ type: "trouble", message: String(error) });
    }
  }
}

async function close(): Promise<void> {
  closing = true;
  clearTimeout(tick);
  clearInterval(beats);
  await keeper.round().catch(() => {});
  await store.close();
  watch.stop();
  say({ type: "closed" });
  port.close();
}

async function round(): Promise<void> {
  try {
    await keeper.round();
    if (!closing) await store.maintain();
  } catch (error) {
    say({ type: "trouble", message: String(error) });
  }
  if (closing) return;
  clearTimeout(tick);
  tick = setTimeout(() => void round(), keeper.nextAt() !== NEVER ? TICK : alert ? ALERT_TICK : IDLE_TICK);
}

say({ type: "ready" });
void round();
