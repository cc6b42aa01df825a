import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import type { Clearing } from "../../work.ts";
import type { Dialect, Reads, Script } from "../script.ts";
import { endedWithWork } from "../builds/leftovers.ts";

/** Work items of builds that have ended. */
export class UnfinishedWork {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  builds(db: Reads, { pipeline }: Clearing): Script<EndedBuild[]> {
    return db.all<EndedBuild>(this.#sql.builds, { pipeline: pipeline ?? null });
  }

  *items(db: Reads, ended: readonly EndedBuild[], { which, limit }: Clearing): Script<UnfinishedItem[]> {
    if (ended.length === 0) return [];
    return yield* db.all<UnfinishedItem>(this.#sql[which], { builds: ended.map(({ key }) => key), limit });
  }

  *isAny(db: Reads, clearing: Clearing): Script<boolean> {
    const builds = yield* this.builds(db, clearing);
    return (yield* this.items(db, builds, { ...clearing, limit: 1 })).length > 0;
  }
}

interface EndedBuild {
  key: BuildKey;
  queue: string;
}

export interface UnfinishedItem {
  job: JobKey;
  lane: number;
}

function statements(dialect: Dialect) {
  const { table } = dialect;
  const items = (which: string) => `
    select work.job, job.lane from ${table("work")} as work join ${table("jobs")} as job on job.key = work.job
    where ${dialect.in("work.build", "bigint", ":builds")} ${which} limit :limit`;
  return {
    builds: `
      select key, queue from (${endedWithWork(dialect)}) as ended
      where cast(:pipeline as text) is null or pipeline = :pipeline order by key`,
    all: items(""),
    idle: items("and (job.state <> 'running' or work.kind = 'listing')"),
  };
}
