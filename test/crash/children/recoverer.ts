import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { open, type OpenOptions } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { ledBuild } from "../builds.ts";
import { type WorkInput, workJob } from "../jobs.ts";
import { hear, heard, say, told } from "./port.ts";

/** Opens the database on request and reports what it has recovered; or leaves a lot behind to be recovered. */
const { path, effects, point, options } = told<{ point?: string; options?: OpenOptions }>();
const work = workJob(effects, { lease: "1h" });
await say("ready");
await heard("open");
if (point !== undefined) crashAt(point);
const hf = await open(path, options);
await say("opened", { last: await hf.recovery.lastReport(), history: await hf.recovery.history() });

/** Jobs in hand, one of them exclusively, a lock, and a build that it leads: what a process can leave behind. */
hear("take", async ({ jobs }) => {
  const { store, self } = hf.engine;
  await hf.enqueueMany(
    work,
    Array.from({ length: jobs as number }, (): WorkInput => ({})),
  );
  const from = [{ name: "work", version: 1, lease: 3_600_000 }];
  await store.claim({ from, max: jobs as number, holder: self, worker: "doomed" });
  await hf.enqueue(workJob(effects, { lease: "1h", queue: "alone" }), {});
  await store.claim({ from: [{ queue: "alone", lease: 3_600_000 }], max: 1, holder: self, worker: "doomed", exclusive: "token" });
  await hf.lock("nightly").acquire("doomed", "1h");
  await store.builds.start(await ledBuild(work, self));
  await say("taken");
});
/** Half of what it is about to store. */
hear("draft", async () => {
  const folder = (await hf.engine.artifacts()).privateFolderNow();
  writeFileSync(join(folder, "half"), "half of it");
  await say("drafted");
});
hear("disconnect", () => {
  process.removeAllListeners("disconnect");
  process.disconnect();
});
hear("close", async () => {
  await hf.close();
  await say("closed");
  process.removeAllListeners("disconnect");
  process.disconnect();
});
