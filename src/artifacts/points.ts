/**
 * Named instants at which a test may kill the process, as a crash would. Those of the store are its own
 * (`store/points.ts`): nothing here is a transaction.
 */
export const ARTIFACT_POINTS = [
  // The temporary file is there, and empty; all bytes are in it; they are synced; it has its name; its folder is synced.
  "put:begun",
  "put:written",
  "put:synced",
  "put:renamed",
  "put:kept",
  // Put aside; references were looked at again; back in its place, of those that have one; gone, of those that have none.
  "sweep:doomed",
  "sweep:checked",
  "sweep:restored",
  "sweep:removed",
  // The staging folder is there; a file is in it; all is synced; it has its name; the pointer is made; it has its name.
  "export:begun",
  "export:copied",
  "export:synced",
  "export:renamed",
] as const;
export type ArtifactPoint = (typeof ARTIFACT_POINTS)[number];

let armed: ArtifactPoint | undefined;

export function armArtifactPoint(point: ArtifactPoint): void {
  armed = point;
}

export function passArtifactPoint(point: ArtifactPoint): void {
  if (armed !== undefined && armed === point) process.kill(process.pid, "SIGKILL");
}
