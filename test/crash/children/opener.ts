import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { workJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** Opens the database with its options, uses it at once, and closes it again. */
const { effects, crashAt: point, later = false } = told<{ crashAt?: string; later?: boolean }>();
if (later) await import("../../unit/later-migration.ts");
if (point !== undefined) crashAt(point);
const work = workJob(effects);

hear("open", async ({ path, enqueues = true }) => {
  try {
    await using hf = await open(path as string);
    if (enqueues) await hf.enqueue(work, {});
    await say("opened", { databaseId: hf.engine.store.databaseId });
  } catch (error) {
    await say("opened", { error: `${String(error)} ${((error as Error).cause as Error | undefined)?.stack ?? ""}` });
  }
});
await say("ready");
