import type { JobContext } from "../../core/pipelines/stage.ts";
import type { Target } from "../../core/pipelines/source.ts";
import { runIsolated } from "./host.ts";
import type { Member, ToldTask } from "./messages.ts";
import type { Expansion } from "../expansion.ts";
import type { HandedContext, Session } from "../session.ts";
import type { Inputs, Task } from "../stage-runner.ts";
import { outputOf } from "../values.ts";
import type { Worksite } from "../worksite.ts";

/** Members of a gather that are handed over at a time. */
const PAGE = 100;

/** Calls a stage's handler in a process of its own. */
export async function callIsolated(parts: {
  site: Worksite;
  task: Task;
  handed: HandedContext;
  job: JobContext<unknown>;
  session: Session;
  inputs: Inputs;
  expansion: Expansion | null;
}): Promise<unknown> {
  const { site, task, handed, job, session, inputs, expansion } = parts;
  const iterator = inputs[Symbol.asyncIterator]();
  const returned = await runIsolated(await told(site, task, handed), handed, job, {
    members: async () => {
      const page: Member[] = [];
      for (let next; page.length < PAGE && !(next = await iterator.next()).done;) {
        const { target, output, outputs } = next.value;
        page.push({ target: site.tell(target as Target), output, outputs });
      }
      return page;
    },
    targets: async (yielded) => {
      for (const one of yielded) await expansion?.add(one);
    },
  });
  if (!returned.isUnchanged) session.spoil();
  if (returned.followUps.length > 0) (task.attempt.followUps ??= []).push(...returned.followUps);
  return returned.output;
}

async function told(site: Worksite, task: Task, handed: HandedContext): Promise<ToldTask> {
  const { attempt, place, row, traveller, view } = task;
  const { location, artifactFolder } = site.engine;
  const { job, fence, claimed } = attempt;
  const isFiles = site.model.definition.source.kind === "files";
  if (isFiles) await site.artifacts();
  return {
    module: site.model.definition.module as string,
    pipeline: site.model.name,
    stage: place.stage.name,
    output: outputOf(place.stage.name, row.path),
    lease: { job, fence },
    id: claimed.id,
    attempt: claimed.attempt,
    scheduledFor: handed.scheduledFor,
    idempotencyKey: handed.idempotencyKey,
    input: handed.input,
    outputs: handed.outputs,
    target: site.tell(traveller.target),
    ...(place.stage.kind === "gather" ? { failed: view.build.failed } : {}),
    artifacts: isFiles
      ? { folder: artifactFolder.path as string, driver: location.kind === "sqlite" ? location.driver : "node:sqlite" }
      : null,
  };
}
