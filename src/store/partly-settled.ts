import type { Fate } from "../core/jobs/lease.ts";

/** Thrown where some of a batch have ended and the others have not: with those nothing has happened yet. */
export class PartlySettled extends Error {
  /** In the order in which they were asked for; null for those that have not ended. */
  readonly fates: readonly (Fate | null)[];

  constructor(fates: readonly (Fate | null)[], cause: unknown) {
    super("Some of the attempts have ended, and others have not.", { cause });
    this.name = new.target.name;
    this.fates = fates;
  }
}
