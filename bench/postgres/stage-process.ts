import { kernelTime, rate } from "../measure.ts";
import { payload } from "../scratch.ts";
import { type Contender, type Name, open } from "./contender.ts";
import type { Act, Message } from "./stage.ts";

const name = process.argv[2] as Name;
let contender: Contender | null = null;

process.on("message", (act: Act) => {
  perform(act).then(
    (answer) => say({ answer: answer ?? null }),
    (error: unknown) => say({ error: error instanceof Error ? (error.stack ?? error.message) : String(error) }),
  );
});
// Also when the other end was interrupted: nothing stays behind.
process.on("disconnect", () => process.exit());

async function perform({ act, ask }: Act): Promise<unknown> {
  if (act === "open") return void (contender = await open(name, ask.url, ask.purpose));
  const on = contender;
  if (on === null) throw new Error("Nothing is open.");
  switch (act) {
    case "close":
      return on.close();
    case "enqueue":
      return timed(ask.jobs, () => enqueue(on, ask.jobs, ask.atOnce));
    case "bulk":
      return timed(ask.jobs, () => bulk(on, ask.jobs));
    case "drain":
      return timed(ask.jobs, () => on.drain(ask.jobs));
    case "listen":
      return on.listen((i) => say({ started: { i, at: kernelTime() } }));
    case "ping": {
      const called = kernelTime();
      await on.enqueue(payload(ask.i));
      return { called, acknowledged: kernelTime() };
    }
  }
}

function enqueue(to: Contender, jobs: number, atOnce: number): Promise<unknown> {
  let next = 0;
  const call = async (): Promise<void> => {
    while (next < jobs) await to.enqueue(payload(next++));
  };
  return Promise.all(Array.from({ length: atOnce }, call));
}

function bulk(to: Contender, jobs: number): Promise<unknown> {
  const { batch, atOnce } = to.bulk;
  let next = 0;
  const call = async (): Promise<void> => {
    while (next < jobs) {
      const from = next;
      next += batch;
      await to.enqueueMany(Array.from({ length: Math.min(batch, jobs - from) }, (_, k) => payload(from + k)));
    }
  };
  return Promise.all(Array.from({ length: atOnce }, call));
}

async function timed(jobs: number, work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return rate(jobs, start);
}

function say(message: Message): void {
  process.send?.(message);
}
