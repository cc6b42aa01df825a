import { parentPort, workerData } from "node:worker_threads";
import type { ProcessId } from "../core/ids.ts";
import { openStore, type StoreLocation } from "../store/open-store.ts";
import { Holdings } from "./holdings.ts";
import { Keeper, type Loss } from "./keeper.ts";
import { systemClock } from "./system-clock.ts";

/** How often it looks at the shared table; a renewal is due after a third of a lease, and a lease is at least 100 ms. */
const TICK = 30;
/** How often the store is looked after. */
const MAINTAIN = 30;

export interface KeeperThreadData {
  location: StoreLocation;
  process: ProcessId;
  holdings: SharedArrayBuffer;
}
export type FromKeeper =
  | { type: "ready" }
  | { type: "loss"; loss: Loss }
  | { type: "closed" }
  | { type: "trouble"; message: string };

const port = parentPort as NonNullable<typeof parentPort>;
const data = workerData as KeeperThreadData;
const say = (message: FromKeeper) => port.postMessage(message);

const store = await openStore(data.location, { clock: systemClock, ownThread: true });
store.actAs(data.process);
const keeper = new Keeper({
  store,
  holdings: new Holdings(data.holdings),
  clock: systemClock,
  onLoss: (loss) => say({ type: "loss", loss }),
});

let closing = false;
let maintainedAt = 0;
let tick: NodeJS.Timeout;

port.once("message", async () => {
  closing = true;
  clearTimeout(tick);
  await keeper.round().catch(() => {});
  await store.close();
  say({ type: "closed" });
  port.close();
});

const round = async () => {
  try {
    await keeper.round();
    const now = systemClock.monotonic();
    if (now - maintainedAt >= MAINTAIN) {
      maintainedAt = now;
      await store.maintain();
    }
  } catch (error) {
    say({ type: "trouble", message: String(error) });
  }
  if (!closing) tick = setTimeout(round, TICK);
};
say({ type: "ready" });
void round();
