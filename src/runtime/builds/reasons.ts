import type { ContextParts } from "../../core/context-hash.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Difference } from "../../core/difference.ts";
import { changedMembers } from "../../core/members.ts";
import { Nearest } from "../../core/nearest.ts";
import { editedStages, type PipelineDescription } from "../../core/pipeline-description.ts";
import { sayPath } from "../../core/target-id.ts";
import { type Why, why } from "../../core/why.ts";
import type { BuildRow } from "../../store/builds.ts";
import type { Store } from "../../store/store.ts";
import type { StoredResult } from "../../store/work.ts";
import { readMembers } from "./member-list.ts";
import { severalOutputs } from "./outputs.ts";
import type { BuildSettings } from "./settings.ts";

/** Why a stage ran for a target in a build, or did not, input by input. */
export async function explainBuild(store: Store, build: BuildRow, stage: string, target: string): Promise<Why> {
  const nearest = new Nearest(target);
  const after = (await store.work.resultOf(build.id, stage, target)) ?? (await resultNamed(store, build, stage, target, nearest));
  if (after === null) throw noResult(build, stage, target, nearest.found);
  const ran = after.build === build.id && after.state !== "REUSED";
  const before = ran ? await store.work.resultBefore(build.id, stage, after.path) : after;
  return why({
    ran,
    before: partsOf(before),
    after: partsOf(after) ?? NO_PARTS,
    members: await changesOf(before, after),
    forced: (JSON.parse(build.options) as BuildSettings).rerun.includes(stage),
    failedBefore: before?.state === "FAILED",
    edited: await isEdited(store, build, before, stage),
  });
}

function noResult(build: BuildRow, stage: string, target: string, near: readonly string[]): HoldfastError {
  const stages = described(build).stages.map(({ name }) => name);
  const message = `Build ${build.id} has no result of stage "${stage}" for ${JSON.stringify(target)}.`;
  if (!stages.includes(stage)) {
    const nearest = new Nearest(stage, 1);
    for (const name of stages) nearest.look(name);
    const [meant] = nearest.found;
    const hint = `${meant === undefined ? "" : `Did you mean stage "${meant}"? `}Stages: ${stages.join(", ")}.`;
    return new HoldfastError("NO_SUCH_OUTPUT", message, hint);
  }
  const hint =
    near.length > 0
      ? `Did you mean ${near.map((one) => JSON.stringify(one)).join(" or ")}?`
      : "The target failed before, the stage's `match` skips it, or its id is another: see the build's errors.";
  return new HoldfastError("NO_SUCH_OUTPUT", message, hint);
}

/** Of a child, which is named by its own id, or by its parents' and its own. `nearest` sees the names of all others. */
async function resultNamed(
  store: Store,
  build: BuildRow,
  stage: string,
  target: string,
  nearest: Nearest,
): Promise<StoredResult | null> {
  const isIt = (one: StoredResult) => one.stage === stage && (one.target === target || sayPath(one.path) === target);
  const found = (await store.work.failures(build.id, FAILURES)).filter(isIt);
  for (let after: string | undefined; ;) {
    const page = await store.work.resultsOf(build.id, stage, { limit: PAGE, ...(after === undefined ? {} : { after }) });
    found.push(...page.filter(isIt));
    for (const { path } of page) nearest.look(sayPath(path));
    after = page.at(-1)?.path;
    if (after === undefined || found.length > 1) break;
  }
  if (found.length > 1) throw severalOutputs(stage, target);
  return found[0] ?? null;
}

/** Looked through for one of that name. */
const FAILURES = 1_000;
const PAGE = 200;

const NO_PARTS: ContextParts = {
  stage: "",
  version: 0,
  key: null,
  input: "none",
  uses: {},
  target: { id: "", hash: "" },
  reuse: "target",
};

/** Of a gather, whose parts have a list of its members beside them. */
async function changesOf(before: StoredResult | null, after: StoredResult): Promise<Difference[]> {
  const [was, is] = [before, after].map((result) => partsOf(result)?.members);
  if (was === undefined || is === undefined || was === is) return [];
  return changedMembers(await readMembers(was), await readMembers(is));
}

function partsOf(result: StoredResult | null): (ContextParts & { members?: string }) | null {
  return result === null || result.parts === null ? null : (JSON.parse(result.parts) as ContextParts & { members?: string });
}

/** Whether its code is not that of the result before, under the same version. */
async function isEdited(store: Store, build: BuildRow, before: StoredResult | null, stage: string): Promise<boolean> {
  if (before === null || before.build === build.id) return false;
  const earlier = await store.builds.getBuild(before.build);
  if (earlier === null) return false;
  return editedStages(described(earlier), described(build)).includes(stage);
}

function described({ description }: BuildRow): PipelineDescription {
  return JSON.parse(description) as PipelineDescription;
}
