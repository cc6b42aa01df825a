import type { JobContext } from "../core/pipelines/stage.ts";
import { NOTHING } from "../core/pipelines/cost.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toJobError } from "../core/jobs/job.ts";
import { listingJobName, stageJobName } from "../core/pipelines/work.ts";
import { type Attempt, Ending, failForGood } from "../engine/attempt.ts";
import type { Definition } from "../engine/definition.ts";
import { Lister } from "./lister.ts";
import { StageRunner } from "./stage-runner.ts";
import type { Worksite } from "./worksite.ts";
import { describeSkipped } from "./sources/databases.ts";

/** Of a listing: it may be told by every commit that it goes on. */
const LISTING_LEASE = 30_000;

/** What work items have come to is in their results; their jobs are only of use to those who look at what happens just now. */
const KEEP = { succeeded: { age: 3_600_000 }, cancelled: { age: 3_600_000 } };

/** A pipeline's stages and its listing, as a worker runs them. */
export function definitionsOf(site: Worksite): Definition[] {
  const { model } = site;
  const runner = new StageRunner(site);
  const stages = [...model.places].map(({ stage, declared }) =>
    definition(site, {
      name: stageJobName(model.name, stage.name),
      version: stage.version,
      policy: stage.policy,
      lease: stage.lease,
      concurrency: stage.concurrency,
      declared,
      perform: (attempt, job) => runner.perform(attempt, job),
    }),
  );
  const name = listingJobName(model.name);
  const listing = definition(site, {
    name,
    version: 1,
    policy: model.listingPolicy,
    lease: LISTING_LEASE,
    concurrency: undefined,
    declared: {
      declaration: { queue: model.queue, name, limits: [], settings: { events: false, keep: KEEP } },
      empty: true,
      keys: [],
    },
    perform: (attempt, job) => list(site, attempt, job),
  });
  return [...stages, listing];
}

type Own = "name" | "version" | "policy" | "lease" | "concurrency" | "declared" | "perform";

function definition(site: Worksite, own: Pick<Definition, Own>): Definition {
  const made: Definition = {
    ...own,
    queue: site.model.queue,
    bound: true,
    isResting: () => site.isResting(),
    input: undefined,
    output: undefined,
    run: undefined,
    handle: () => made,
  };
  return made;
}

async function list(site: Worksite, attempt: Attempt, job: JobContext<unknown>): Promise<void> {
  attempt.work = { cost: NOTHING, result: null, target: null };
  await site.ready();
  const view = await site.view(attempt.job);
  if (view === null) return;
  const { round, which } = job.input as { round: number; which?: "failed" };
  const cursor = (await job.checkpoint.load()) as string | null | undefined;
  const scope = site.scope(view.build);
  try {
    const register = site.enlister(scope, attempt.claimed);
    const lister = new Lister({
      scope,
      register,
      targets: site.targets,
      values: site.values,
      clock: site.engine.clock,
      artifacts: site.artifacts,
      folders: site.folders,
      signal: attempt.signal,
      isLeaving: () => site.isLeaving(view.build.key),
      onSkipped: (file) => site.engine.log.warn(describeSkipped(file), { build: view.build.id, hint: SKIP_HINT }),
    });
    if (round > 0) await lister.groups(round, view.build.failed);
    else if (which === undefined) return await lister.source(cursor);
    await register.retryFailed(round, () => lister.refuseLeaving());
  } catch (error) {
    // What the definition itself is refused for is refused again.
    if (error instanceof HoldfastError && LASTING.has(error.code)) throw new Ending(failForGood(toJobError(error)));
    throw error;
  }
}

const SKIP_HINT = "Leave it out with `ignore` of files(), or move the database to another folder.";

const LASTING = new Set(["NOT_JSON", "SOURCE_INVALID", "SOURCE_MISSING", "TARGET_ID_INVALID", "TARGET_TWICE", "TARGET_UNKNOWN"]);
