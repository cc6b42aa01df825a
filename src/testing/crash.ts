import { HoldfastError } from "../core/text/errors.ts";
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
  if (POINTS.includes(point)) return armPoint(point);
  if ((ARTIFACT_POINTS as readonly string[]).includes(point)) return armArtifactPoint(point as ArtifactPoint);
  throw new HoldfastError(
    "NO_SUCH_POINT",
    `There is no point ${JSON.stringify(point) ?? String(point)} to crash at.`,
    `Give one of ${[...POINTS, ...ARTIFACT_POINTS].join(", ")}.`,
  );
}
