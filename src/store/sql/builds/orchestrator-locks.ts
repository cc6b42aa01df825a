import type { BuildKey, ProcessId } from "../../../core/text/ids.ts";
import {
  ORCHESTRATOR_TTL_MS,
  type OrchestratorLockColumns,
  type OrchestratorLockRow,
  type LockToken,
  type NewOrchestratorLock,
  toOrchestratorLock,
} from "../../builds.ts";
import type { KnownProcesses } from "../../processes.ts";
import type { Dialect, Reads, Script, Tx } from "../script.ts";

interface LeftBuild {
  key: BuildKey;
  id: string;
  /** The pipeline whose lock its orchestrator has left; null: there is no such lock. */
  lock: string | null;
}

/** Which orchestrator leads the builds of each pipeline. */
export class OrchestratorLocks {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  /** The lead that is in force; null if no process leads the pipeline, or only one that is gone. */
  *held(db: Reads, pipeline: string): Script<OrchestratorLockRow | null> {
    const row = yield* db.get<OrchestratorLockColumns>(this.#sql.held, { pipeline });
    return row === undefined ? null : toOrchestratorLock(row);
  }

  /** The lead, whether its process is alive or not. */
  *find(db: Reads, pipeline: string): Script<OrchestratorLockRow | null> {
    const row = yield* db.get<OrchestratorLockColumns>(this.#sql.find, { pipeline });
    return row === undefined ? null : toOrchestratorLock(row);
  }

  /** The lead under this token of this build; null if its orchestrator does not lead it any more. */
  *holding(db: Reads, build: BuildKey, { pipeline, token }: LockToken): Script<OrchestratorLockRow | null> {
    const row = yield* db.get<OrchestratorLockColumns>(this.#sql.find, { pipeline });
    return row === undefined || row.token !== token || row.key !== build ? null : toOrchestratorLock(row);
  }

  /** Of one pipeline, if it is named. */
  *list(db: Reads, pipeline?: string): Script<OrchestratorLockRow[]> {
    if (pipeline === undefined) return (yield* db.all<OrchestratorLockColumns>(this.#sql.all)).map(toOrchestratorLock);
    return (yield* db.all<OrchestratorLockColumns>(this.#sql.find, { pipeline })).map(toOrchestratorLock);
  }

  /** What a process leads. */
  *orchestratedBy(db: Reads, holder: ProcessId): Script<(OrchestratorLockRow & { key: BuildKey })[]> {
    const rows = yield* db.all<OrchestratorLockColumns>(this.#sql.orchestratedBy, { holder });
    return rows.map((row) => Object.assign(toOrchestratorLock(row), { key: row.key }));
  }

  *take(tx: Tx, pipeline: string, build: BuildKey, lead: NewOrchestratorLock): Script<void> {
    const { token, holder, pid, host, program, programHash } = lead;
    yield* tx.run(this.#sql.take, { pipeline, build, token, holder, pid, host, program, programHash });
  }

  beat(tx: Tx, { pipeline, token }: LockToken): Script<boolean> {
    return tx.run(this.#sql.beat, { pipeline, token });
  }

  release(tx: Tx, build: BuildKey): Script<boolean> {
    return tx.run(this.#sql.release, { build });
  }

  /** ACTIVE builds without an orchestrator, led by a process that is gone, or by one that has not been heard of for too long. */
  *withoutOrchestrator(db: Reads, { dead, alive }: KnownProcesses): Script<LeftBuild[]> {
    return yield* db.all<LeftBuild>(this.#sql.withoutOrchestrator, { dead, alive });
  }
}

function statements(dialect: Dialect) {
  const leads = dialect.table("leads");
  const builds = dialect.table("builds");
  // A process that is found dead is struck off, and with that its lead is free.
  const registered = `exists (select 1 from ${dialect.table("processes")} where id = lead.holder)`;
  const read = `
    select lead.pipeline, build.id as build, build.key, lead.token, lead.holder, lead.pid, lead.host, lead.program,
      lead.program_hash as "programHash", lead.acquired_at as "acquiredAt", lead.beat_at as "beatAt"
    from ${leads} as lead join ${builds} as build on build.key = lead.build`;
  return {
    find: `${read} where lead.pipeline = :pipeline`,
    held: `${read} where lead.pipeline = :pipeline and ${registered}`,
    all: `${read} order by lead.pipeline`,
    // Fails if a process leads the pipeline, whatever was read before.
    take: `
      insert into ${leads} (pipeline, build, token, holder, pid, host, program, program_hash, acquired_at, beat_at)
      values (:pipeline, :build, :token, :holder, :pid, :host, :program, :programHash, :now, :now)`,
    beat: `update ${leads} set beat_at = :now where pipeline = :pipeline and token = :token`,
    release: `delete from ${leads} where build = :build`,
    orchestratedBy: `${read} where lead.holder = :holder order by build.key`,
    // Uses the index builds_unended: its condition is repeated here so that the planner recognises it.
    withoutOrchestrator: `
      select build.key, build.id, lead.pipeline as lock from ${builds} as build
        left join ${leads} as lead on lead.pipeline = build.pipeline and lead.build = build.key
      where build.state = 'ACTIVE' and build.state not in ('SUCCESS', 'FAILED', 'ABANDONED')
        and (lead.build is null or not ${registered}
          or ${dialect.in("lead.holder", "bigint", ":dead")}
          or (lead.beat_at <= :now - ${ORCHESTRATOR_TTL_MS} and not ${dialect.in("lead.holder", "bigint", ":alive")}))
      order by +build.key`,
  };
}
