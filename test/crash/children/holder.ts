import { type Claim, type Duration, HoldfastError, type JobContext, type Log, open } from "../../../src/index.ts";
import { after, type WorkInput, workJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** A worker whose jobs do as their input says, and which obeys the parent's messages. */
const options = told<{ concurrency?: number; lease?: Duration; signals?: boolean; drain?: Duration }>();
const { path, effects, concurrency = 10, lease = "30s", signals = false } = options;

const log: Log = {
  debug: () => {},
  info: () => {},
  warn: (message, data) => {
    if (/refused/.test(message)) void say("aborted", { ...data, code: "REFUSED" });
  },
  error: (message, data) => console.error(message, data),
};
const hf = await open(path, { log });
const holding = new Map<string, () => void>();
let running = 0;

const work = workJob(effects, { lease }, async (context) => {
  running++;
  await say("started", { id: context.id, attempt: context.attempt, pid: process.pid });
  try {
    await act(context);
  } finally {
    running--;
  }
});

async function act({ id, input, signal }: JobContext<WorkInput>): Promise<void> {
  signal.addEventListener("abort", () => void say("aborted", { id, code: (signal.reason as HoldfastError).code }));
  if (input.hold) {
    await new Promise<void>((resolve, reject) => {
      holding.set(id, resolve);
      if (!input.deaf) signal.addEventListener("abort", () => reject(signal.reason));
    });
  }
  if (input.block !== undefined) {
    const end = performance.now() + input.block;
    while (performance.now() < end);
    await say("unblocked", { id });
  }
  if (input.lasts !== undefined) await new Promise((resolve) => setTimeout(resolve, input.lasts));
  if (input.poison) process.kill(process.pid, "SIGKILL");
}

hear("finish", () => {
  for (const finish of holding.values()) finish();
  holding.clear();
});
hear("recover", async () => say("recovered", { ...(await hf.recovery.recoverStale()) }));
hear("how many", () => say("so many", { running }));

let claim: Claim | null = null;
hear("claim", async ({ lease }) => {
  claim = await hf.claim("work", { worker: "by hand", lease: lease as number });
  await say("claimed", { id: claim?.job.id ?? null });
});
hear("succeed", async () => {
  const code = await claim?.succeed().then(
    () => "accepted",
    (error: unknown) => (error as HoldfastError).code,
  );
  await say("answered", { code });
});
/** A claim that is committed, and whose answer never arrives. */
hear("lose a claim", async ({ lease }) => {
  const { store, self } = hf.engine;
  const { length } = await store.claim({
    from: [{ name: "work", version: 1, lease: lease as number }],
    max: 1,
    holder: self,
    worker: "",
  });
  await say("claim lost", { length });
});

hear("work", () => start());
function start(): Promise<void> {
  hf.work([work, after], { concurrency, signals, ...(options.drain === undefined ? {} : { drain: options.drain }) });
  for (const signal of signals ? (["SIGTERM", "SIGINT"] as const) : []) process.on(signal, () => void say("signalled"));
  return say("working");
}
await say("ready");
