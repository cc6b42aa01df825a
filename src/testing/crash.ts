import { rejectSurplus } from "../core/text/arguments.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { describeValue, didYouMean } from "../core/text/options.ts";
import { ARTIFACT_POINTS, armArtifactPoint, type ArtifactPoint } from "../artifacts/folder.ts";
import { armPoint, POINTS } from "../store/points.ts";

/**
 * SIGKILL to oneself at a named point: `<operation>:<moment>`. The operation is a transaction (`enqueue`, `claim`,
 * `settle`, `tick` and so on), the moment `begun` (it is open), `written` (all its statements have run) or `committed`
 * (no caller was answered yet). `deliver:begun` and `deliver:written` are before and after events go to a sink or subscriber;
 * `put:…`, `sweep:…` and `export:…` are steps of artifacts, `backup:…`, `restore:…` and `salvage:…` those of what they name,
 * `drain:…` those of the journal.
 *
 * ```ts
 * crashAt("settle:written");
 * ```
 */
export function crashAt(point: string): void {
  rejectSurplus(arguments, 1, "crashAt");
  if (POINTS.includes(point)) return armPoint(point);
  if ((ARTIFACT_POINTS as readonly string[]).includes(point)) return armArtifactPoint(point as ArtifactPoint);
  const points = [...POINTS, ...ARTIFACT_POINTS];
  const meant = typeof point === "string" ? point.trim().replace(/\s+/, ":") : point;
  throw new HoldfastError(
    "NO_SUCH_POINT",
    `There is no point ${describeValue(point)} to crash at.`,
    `${didYouMean(meant, points)}Give one of ${points.join(", ")}.`,
  );
}
