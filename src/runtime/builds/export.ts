import type { ExportEntry } from "../../artifacts/export.ts";
import type { Artifacts } from "../../artifacts/artifacts.ts";
import { toCost } from "../../core/cost.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { PipelineDescription } from "../../core/pipeline-description.ts";
import { sayPath } from "../../core/target-id.ts";
import type { BuildRow } from "../../store/builds.ts";
import type { Store } from "../../store/store.ts";
import type { StoredResult } from "../../store/work.ts";
import { viewBuild } from "./view.ts";

const PAGE = 200;

/** What is written of one result into the manifest. */
interface Exported {
  stage: string;
  target: string;
  build: string;
  hash: string;
  cost: { usd: number; tokens: number };
  files: { path: string; name: string; hash: string; size: number }[];
}

/**
 * All that the stages of a build have made, as files in a folder: an output as `<stage>/<target>.json`, or `.bin` where it is
 * bytes, and an artifact under its own name as `<stage>/<target>/<name>`.
 */
export async function exportBuild(
  parts: { store: Store; artifacts: Artifacts },
  build: BuildRow,
  dir: string,
  stages: readonly string[] | undefined,
): Promise<string> {
  const chosen = chosenStages(build, stages);
  const entries: ExportEntry[] = [];
  const results: Exported[] = [];
  for (const stage of chosen) {
    for await (const result of resultsOf(parts.store, build, stage)) {
      const exported = await exportedOf(parts, result);
      results.push(exported);
      entries.push(...exported.files.map(({ path, hash }) => ({ path, hash })));
    }
  }
  const { token: _, ...view } = await viewBuild(parts.store, build);
  const { path } = await parts.artifacts.exportTo(dir, entries, { build: view, stages: chosen, targets: results });
  return path;
}

async function exportedOf({ store, artifacts }: { store: Store; artifacts: Artifacts }, result: StoredResult): Promise<Exported> {
  const { stage, path, build, hash, cost, output } = result;
  const place = `${stage}/${sayPath(path)}`;
  const files: Exported["files"] = [];
  if (output.hash !== "none") {
    const isBytes = output.hash.startsWith("bytes:");
    const stored =
      output.artifact === null ? await artifacts.put(output.text ?? "") : { hash: output.artifact, size: output.size };
    files.push({ path: `${place}.${isBytes ? "bin" : "json"}`, name: "", hash: stored.hash, size: stored.size });
  }
  for (const { name, hash: content, size } of await store.work.artifactsOf(result)) {
    files.push({ path: `${place}/${name}`, name, hash: content, size });
  }
  return { stage, target: sayPath(path), build, hash, cost: toCost(cost), files };
}

async function* resultsOf(store: Store, build: BuildRow, stage: string): AsyncIterable<StoredResult> {
  for (let after: string | undefined; ;) {
    const page = await store.work.resultsOf(build.id, stage, { limit: PAGE, ...(after === undefined ? {} : { after }) });
    yield* page;
    after = page.at(-1)?.path;
    if (after === undefined) return;
  }
}

function chosenStages(build: BuildRow, stages: readonly string[] | undefined): string[] {
  const { stages: described } = JSON.parse(build.description) as PipelineDescription;
  const known = described.map(({ name }) => name);
  for (const stage of stages ?? []) {
    if (known.includes(stage)) continue;
    throw new HoldfastError("STAGE_UNKNOWN", `Build ${build.id} has no stage "${stage}".`, `Its stages are ${known.join(", ")}.`);
  }
  return known.filter((name) => stages === undefined || stages.includes(name));
}
