/**
 * One pass over the library: resumes the build that was left, if there is one, else starts a new one. `main.ts` runs
 * it in processes of their own, one of which does not live to the end.
 */
import { join } from "node:path";
import { type Build, type Cost, open } from "../../src/index.ts";
import { AT_ONCE, tidePools } from "./pipeline.ts";

/** What a pass says to the process that has started it. */
export type News =
  /** The build that was left, with all that it was charged for so far. */
  | { found: { spent: Required<Cost> } }
  /** A handler was called: "stage target". */
  | { ran: string }
  | { build: Build }
  | { exported: string };

const [folder, service] = process.argv.slice(2) as [string, string];
const tell = (news: News): boolean | undefined => process.send?.(news);
const orphaned = (): void => void process.kill(process.pid, "SIGKILL");
process.once("disconnect", orphaned); // it does not outlive the example

const docs = tidePools(service, (stage, target) => tell({ ran: `${stage} ${target}` }));
const hf = await open(join(folder, "work.db"), { program: "tide-pools" });

const [left] = (await hf.builds.list({ pipeline: docs.name, state: "CRASHED" })).items;
if (left) tell({ found: { spent: left.spent } });
const options = { concurrency: AT_ONCE };
const build = left ? await hf.builds.resume(docs, left.id, options) : await hf.builds.start(docs, options);
for await (const seen of build.progress()) tell({ build: seen });
tell({ exported: await hf.builds.export(build.id, join(folder, "exports", build.id)) });

await hf.close();
process.off("disconnect", orphaned);
process.disconnect?.();
