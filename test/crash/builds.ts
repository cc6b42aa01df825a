import type { ProcessId } from "../../src/core/text/ids.ts";
import type { JobDef } from "../../src/index.ts";
import { definitionOf, newJob } from "../../src/engine/definition.ts";
import type { NewBuild } from "../../src/store/builds.ts";
import { newBuild, newLead } from "../conformance/build-parts.ts";
import type { WorkInput } from "./jobs.ts";

/** A build whose listing is a job as any other, so that the worker that completes the remaining jobs can run it too. */
export async function ledBuild(work: JobDef<WorkInput>, holder: ProcessId): Promise<NewBuild> {
  const listing = await newJob(definitionOf(work), {});
  return newBuild(newLead(holder), { queue: listing.queue, listing });
}
