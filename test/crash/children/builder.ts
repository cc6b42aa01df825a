import { HoldfastError, open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { documents } from "../docs.ts";
import { hear, heard, say, told } from "./port.ts";

/** Leads builds of documents, as its options say, and may die on the way: at a point, from the `after`th run of a stage on. */
const options = told<{
  root: string;
  concurrency?: number;
  point?: string;
  after?: { stage: string; run: number };
  /** The run of this target waits for the message "go on". */
  holds?: { stage: string; target: string };
  /** How long a run continues after it has recorded its cost. */
  lasts?: number;
  lease?: number;
  works?: boolean;
  /** The process that summarises this target dies. */
  poison?: string;
  /** Where it dies when it abandons a build. */
  abandonsAt?: string;
  /** These cannot be summarised, after they were paid for. */
  bad?: string[];
  budget?: { usd: number };
}>();
const { path, effects, root, concurrency = 4, point, after, holds, lasts, lease, works = false, poison } = options;

let runs = 0;
const docs = documents(root, effects, {
  ...(lease === undefined ? {} : { lease }),
  ...(lasts === undefined ? {} : { paid: () => new Promise((resolve) => setTimeout(resolve, lasts)) }),
  ...(poison === undefined ? {} : { crashes: 2 }),
  bad: options.bad ?? [],
  began: async ({ stage, target }) => {
    if (stage === "summarise" && target === poison) process.kill(process.pid, "SIGKILL");
    if (point !== undefined && stage === after?.stage && ++runs === after.run) crashAt(point);
    if (stage === holds?.stage && target === holds.target) {
      const goes = heard("go on");
      await say("holding", { stage, target });
      await goes;
    }
  },
});

if (point !== undefined && after === undefined) crashAt(point);
const log = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
const hf = await open(path, { log, artifacts: `${root}-artifacts` });
if (works) hf.work([docs], { concurrency });

hear("build", async ({ resume, approval = {} }) => {
  const { budget } = options;
  try {
    const handle =
      typeof resume === "string"
        ? await hf.builds.resume(docs, resume, { concurrency, ...(approval as object) })
        : await hf.builds.start(docs, { concurrency, ...(budget === undefined ? {} : { budget }) });
    await say("leading", { id: handle.id });
    const { state, reason, spent, stages, token } = await handle.done();
    await say("built", { id: handle.id, state, reason, spent, stages, token });
  } catch (error) {
    const { code, message } = error as HoldfastError;
    await say("refused", { code, message });
  }
});
hear("abandon", async ({ id }) => {
  if (typeof options.abandonsAt === "string") crashAt(options.abandonsAt);
  const { state } = await hf.builds.abandon(id as string, "enough");
  await say("abandoned", { state });
});
await say("ready");
// Another process may lead the build.
setInterval(() => {}, 2 ** 30);
