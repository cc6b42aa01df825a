import type { JobContext } from "../../core/context.ts";
import { HoldfastError } from "../../core/errors.ts";
import { checkName } from "../../core/options.ts";
import type { StageContext } from "../../core/stage.ts";
import { stepOf } from "../../core/trail.ts";
import { checkArtifactName } from "../../artifacts/export-names.ts";
import type { ArtifactData } from "../../artifacts/write.ts";
import { workKey } from "./model.ts";
import type { Session } from "./session.ts";
import type { Task } from "./stage-runner.ts";
import type { Worksite } from "./worksite.ts";

export type HandedContext = StageContext<unknown, unknown, Record<string, unknown>>;

/** What a stage's handler sees: plain properties, so that it may be spread. */
export async function stageContext(
  task: Task,
  session: Session,
  job: JobContext<unknown>,
  site: Worksite,
): Promise<HandedContext> {
  const { place, trail, context, traveller } = task;
  const outputs: Record<string, unknown> = {};
  for (const name of place.stage.uses) {
    const step = stepOf(trail, name);
    if (step !== undefined) outputs[name] = step.output === "none" ? undefined : await site.reader.output(step.result);
  }
  const subject = await subjectOf(task, site);
  return {
    ...job,
    input: context.input,
    target: traveller.target,
    outputs,
    idempotencyKey: workKey(site.engine.store.databaseId, site.model.name, place.stage.name, subject),
    cost: (cost) => session.meter.add(cost),
    artifact: async (name, data) => {
      const named = checkName(name, "An artifact's name");
      // Before it is paid for.
      checkArtifactName(named);
      session.refuseTwice(named);
      const { hash, size } = await (await site.artifacts()).put(data as ArtifactData);
      return session.keep({ name: named, hash, size });
    },
  };
}

/** What the key for outside services is of. What is run anew is done anew outside, too. */
async function subjectOf({ scope, place: { stage }, context: { hash } }: Task, site: Worksite): Promise<string> {
  if (scope.reruns(stage.name)) return `${hash}:${scope.build.id}`;
  if (stage.remove === null && stage.kind !== "expand") return hash;
  // It was made before, and is made again because something else has taken its place since, or it was removed.
  const [found] = await site.engine.store.work.lookUp(site.model.name, [{ stage: stage.name, hash }]);
  return found == null ? hash : `${hash}:${found.key}`;
}

export function artifactTwice(name: string, stage: string): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_TWICE",
    `Stage "${stage}" keeps two artifacts named "${name}" of one target.`,
    "Give each artifact of a target a name of its own.",
  );
}
