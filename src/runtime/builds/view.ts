import { type Build, type CountedStage, viewOf } from "../../core/build-view.ts";
import type { PipelineDescription } from "../../core/pipeline-description.ts";
import { sayPath } from "../../core/target-id.ts";
import type { BuildRow } from "../../store/builds.ts";
import type { Store } from "../../store/store.ts";

/** Shown of what failed. */
const ERRORS = 20;

export async function viewBuild(store: Store, row: BuildRow, token?: string): Promise<Build> {
  const failures = row.failed > 0 || row.listing === "failed" ? await store.work.failures(row.id, ERRORS) : [];
  const errors = failures.map(({ stage, path, error }) => ({
    stage,
    // Children of different targets may have the same id.
    target: sayPath(path),
    message: error?.message ?? "It failed.",
  }));
  return viewOf(row, countedStages(row), errors, token);
}

/** With the segment and round of each, as they were described when the build was started. */
function countedStages(row: BuildRow): CountedStage[] {
  const { stages } = JSON.parse(row.description) as PipelineDescription;
  const counts = new Map(row.stages.map((one) => [one.stage, one]));
  let segment = 0;
  let round = 0;
  return stages.map(({ name, kind }) => {
    if (kind === "gather") {
      segment++;
      round++;
    }
    const { ran = 0, cached = 0, failed = 0, open = 0 } = counts.get(name) ?? {};
    const counted = { stage: name, segment, round, ran, cached, failed, open };
    if (kind === "expand") segment++;
    return counted;
  });
}
