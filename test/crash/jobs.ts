import { appendFileSync } from "node:fs";
import {
  type CommitTx,
  HoldfastError,
  job,
  type JobContext,
  type JobDef,
  type JobOptions,
  NonRetryableError,
} from "../../src/index.ts";

export interface WorkInput {
  n?: number;
  /** Never ends by itself, the first time. */
  hang?: boolean;
  fail?: boolean;
  checkpoint?: boolean;
  progress?: boolean;
  /** For children/holder.ts: ends on request; ignores its signal; blocks its event loop; takes its process down. */
  hold?: boolean;
  deaf?: boolean;
  block?: number;
  poison?: boolean;
  lasts?: number;
}

/** Has to come to an end in spite of any number of crashes, and soon. */
const PATIENT: Omit<JobOptions, "name"> = { crashes: 1_000_000, retry: { attempts: 3, delay: 5, maxDelay: 20 } };

export const after: JobDef<{ parent: string }> = job<{ parent: string }>({ name: "after", ...PATIENT, run: () => {} });

/** Leaves a line outside, and a follow-up inside that commits with it: one of those for each success, whatever happened. */
export function workJob(
  effects: string,
  options: Partial<JobOptions> = {},
  body: (context: JobContext<WorkInput>) => void | Promise<void> = () => {},
): JobDef<WorkInput> {
  return job<WorkInput>({
    name: "work",
    ...PATIENT,
    ...options,
    run: async (context) => {
      const { input, id, attempt, checkpoint, progress, enqueue, signal } = context;
      const loaded = input.checkpoint ? await checkpoint.load() : undefined;
      appendFileSync(effects, `${JSON.stringify({ id, attempt, pid: process.pid, checkpoint: loaded })}\n`);
      await body(context);
      if (input.checkpoint) await checkpoint.save({ step: attempt });
      if (input.progress) progress(0.5, "half");
      if (input.fail) throw new NonRetryableError("it was told to");
      if (input.hang && attempt === 1) {
        await new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      }
      enqueue(after, { parent: id });
    },
  });
}

/** Work that leaves a row in the user's own table `orders` for each success; `added` is called in the same transaction. */
export function committingJob(effects: string, added: () => void = () => {}): JobDef<WorkInput> {
  return workJob(effects, {}, ({ commit, id }) => {
    commit((tx) => addRow(tx, id));
    commit(added);
  });
}

function addRow(tx: CommitTx, id: string): void | Promise<void> {
  try {
    tx.db.prepare("insert into orders (job) values (?)").run(id);
  } catch (error) {
    if (!(error instanceof HoldfastError && error.code === "TX_INVALID")) throw error;
    return tx.query("insert into orders (job) values ($1)", [id]).then(() => {});
  }
}

/** One version of a job, which says who has run it. */
export function render(
  version: number,
  run: (context: JobContext<{ hang?: boolean }>) => Promise<Rendered> = () => Promise.reject(new Error("not here")),
): JobDef<{ hang?: boolean }, Rendered> {
  return job({ name: "render", version, ...PATIENT, run });
}

export interface Rendered {
  version: number;
  pid: number;
}

/** A job whose queue records its events. */
export const telling = job<number>({ name: "telling", queue: { name: "telling", events: true }, run: () => {} });

/** Two at once of each key, over all processes. Leaves a line when it begins, and one just before it ends. */
export function limitedJob(effects: string, began: () => void = () => {}): JobDef<{ key: string }> {
  return job<{ key: string }>({
    name: "limited",
    ...PATIENT,
    limit: { key: ({ key }) => key, concurrency: 2 },
    run: async ({ input: { key }, id }) => {
      const line = (what: string) => appendFileSync(effects, `${JSON.stringify({ what, key, id })}\n`);
      line("begins");
      began();
      for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
      line("ends");
    },
  });
}
