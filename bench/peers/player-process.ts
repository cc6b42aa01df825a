/** One player in a process of its own: runs the commands that arrive over the channel. */
import { setTimeout as pause } from "node:timers/promises";
import { kernelTime } from "../measure.ts";
import { openPlayer, type Player, type Purpose } from "./player.ts";

export interface Acts {
  fill: { ask: number; answer: null };
  /** Starts a worker; the counts of jobs that ran follow as messages. */
  work: { ask: null; answer: null };
  left: { ask: null; answer: number };
  /** The numbers of all jobs that ran here. */
  ran: { ask: null; answer: number[] };
  /** Enqueues a job, and tells when that was acknowledged. */
  ping: { ask: number; answer: number };
  /** Starts a worker that has nothing to do. The share of a core in percent, and the resident memory in MB. */
  idle: { ask: number; answer: { cpu: number; rss: number } };
  /** How long it took in milliseconds, and how many steps ran. */
  pipeline: { ask: number; answer: { took: number; steps: number } };
  close: { ask: null; answer: null };
}
export type Act = { [K in keyof Acts]: { act: K; ask: Acts[K]["ask"] } }[keyof Acts];
export type Message = { answer: unknown } | { error: string } | { ran: number } | { started: { i: number; at: number } };

/** The compiler and the garbage collector still work on the start for a few seconds. */
const SETTLES_MS = 5_000;
const REPORT_MS = 5;
const REPORT_JOBS = 1_000;

const [index, place, purpose] = process.argv.slice(2) as [string, string, Purpose];
const ran: number[] = [];
let reported = 0;

process.on("disconnect", () => process.exit());
openPlayer(Number(index), place, purpose).then(
  (player) => {
    process.on("message", (act: Act) => {
      perform(player, act).then((answer) => say({ answer: answer ?? null }), fail);
    });
    say({ answer: null });
  },
  (error: unknown) => fail(error),
);

async function perform(player: Player, { act, ask }: Act): Promise<unknown> {
  switch (act) {
    case "fill":
      return player.fill?.(ask);
    case "work":
      if (purpose === "throughput") setInterval(report, REPORT_MS).unref();
      return player.work?.((i) => {
        ran.push(i);
        // A worker may keep the timer from firing until all is done.
        if (ran.length - reported >= REPORT_JOBS) report();
        if (purpose === "latency") say({ started: { i, at: kernelTime() } });
      });
    case "left":
      return player.left?.();
    case "ran":
      return ran;
    case "ping":
      await player.enqueue?.(ask);
      return kernelTime();
    case "idle":
      return idle(player, ask);
    case "pipeline":
      return pipeline(player, ask);
    case "close":
      return player.close();
  }
}

function report(): void {
  if (ran.length > reported) say({ ran: ran.length - reported });
  reported = ran.length;
}

async function idle(player: Player, millis: number): Promise<Acts["idle"]["answer"]> {
  await player.work?.(() => {});
  await pause(SETTLES_MS);
  const [before, start] = [process.cpuUsage(), performance.now()];
  await pause(millis);
  const { user, system } = process.cpuUsage(before);
  return { cpu: (user + system) / 10 / (performance.now() - start), rss: process.memoryUsage.rss() / 2 ** 20 };
}

async function pipeline(player: Player, targets: number): Promise<Acts["pipeline"]["answer"]> {
  let steps = 0;
  const start = performance.now();
  await player.pipeline?.(targets, () => steps++);
  return { took: performance.now() - start, steps };
}

function fail(error: unknown): void {
  say({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) });
}

function say(message: Message): void {
  process.send?.(message);
}
