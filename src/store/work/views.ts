import type { BuildKey } from "../../core/text/ids.ts";
import type { BuildRow } from "../builds.ts";
import type { NewWork, TargetRow, WorkView } from "../work.ts";

/** What is looked up of a work item. */
export interface ViewedItem {
  build: BuildKey;
  kind: NewWork["kind"];
  stage: string;
  segment: number;
  path: string;
}

/** The targets of one segment that are asked for together. */
export interface Asked {
  pipeline: string;
  segment: number;
  paths: string[];
}

/** The targets that these items are about, segment by segment. */
export function askedTargets(items: readonly ViewedItem[], builds: ReadonlyMap<BuildKey, BuildRow>): Asked[] {
  const asked = new Map<string, Asked>();
  for (const { kind, build, segment, path } of items) {
    if (kind === "listing") continue;
    const { pipeline } = builds.get(build) as BuildRow;
    const key = `${segment} ${pipeline}`;
    const others = asked.get(key);
    if (others === undefined) asked.set(key, { pipeline, segment, paths: [path] });
    else others.paths.push(path);
  }
  return [...asked.values()];
}

export function viewOf(
  item: ViewedItem | undefined,
  builds: ReadonlyMap<BuildKey, BuildRow>,
  targets: ReadonlyMap<string, TargetRow>,
  removing: boolean,
): WorkView | null {
  if (item === undefined) return null;
  const { kind, stage, segment, path } = item;
  const build = builds.get(item.build) as BuildRow;
  const target = kind === "listing" ? null : (targets.get(placeOf(build.pipeline, segment, path)) ?? null);
  return { kind, stage, build, segment, target, removing };
}

/** By which `viewOf` finds a target. */
export function placeOf(pipeline: string, segment: number, path: string): string {
  return `${segment}\n${pipeline}\n${path}`;
}
