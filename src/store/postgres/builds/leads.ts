import type { BuildKey, ProcessId } from "../../../core/ids.ts";
import { type LeadColumns, toLead } from "../../build-row.ts";
import { LEAD_TTL, type LeadView, type LockToken, type NewLead } from "../../builds.ts";
import { listOf, type Rows } from "../driver.ts";
import type { Tx } from "../transaction.ts";

type Row = [
  pipeline: string,
  build: string,
  key: BuildKey,
  token: string,
  holder: ProcessId,
  pid: number,
  host: string,
  program: string,
  programHash: string,
  acquiredAt: number,
  beatAt: number,
];

/** What is known of processes. */
export interface Known {
  dead: readonly ProcessId[];
  alive: readonly ProcessId[];
}

/** Who leads the builds of each pipeline: the orchestrator's lock. It changes hands in the turn of builds only. */
export class Leads {
  readonly #sql: Record<"find" | "held" | "all" | "take" | "beat" | "release" | "unled" | "ledBy", string>;

  constructor(s: string) {
    // Those whose process is on the list: a dead one is struck off when it is found, and its lock is free with that.
    const registered = `exists (select 1 from ${s}.processes where id = lead.holder)`;
    const read = `select lead.pipeline, build.id, build.key, lead.token, lead.holder, lead.pid, lead.host, lead.program,
        lead.program_hash, lead.acquired_at, lead.beat_at
      from ${s}.leads as lead join ${s}.builds as build on build.key = lead.build`;
    this.#sql = {
      find: `${read} where lead.pipeline = $1`,
      held: `${read} where lead.pipeline = $1 and ${registered}`,
      all: `${read} order by lead.pipeline`,
      // Where somebody has it, it fails, whatever was looked up before.
      take: `
        insert into ${s}.leads (pipeline, build, token, holder, pid, host, program, program_hash, acquired_at, beat_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9::bigint, $9::bigint)`,
      beat: `update ${s}.leads set beat_at = ${s}.clock($1) where pipeline = $2 and token = $3 returning 1`,
      release: `delete from ${s}.leads where build = $1 returning 1`,
      ledBy: `${read} where lead.holder = $1 order by build.key`,
      // By builds_unended, whose condition is written out so that the planner sees it.
      unled: `
        with clock as materialized (select ${s}.clock($1) as now)
        select build.key from clock, ${s}.builds as build
          left join ${s}.leads as lead on lead.pipeline = build.pipeline and lead.build = build.key
        where build.state = 'ACTIVE' and build.state not in ('SUCCESS', 'FAILED', 'ABANDONED')
          and (lead.build is null or not ${registered}
            or lead.holder = any($2::bigint[])
            or (lead.beat_at <= clock.now - ${LEAD_TTL} and lead.holder <> all($3::bigint[])))
        order by build.key`,
    };
  }

  /** Null: nobody has it, or only one who is gone. */
  async held(rows: Rows, pipeline: string): Promise<LeadView | null> {
    const [row] = await rows<Row>(this.#sql.held, pipeline);
    return row === undefined ? null : toLead(columns(row));
  }

  /** Whoever has it, alive or not. */
  async find(rows: Rows, pipeline: string): Promise<LeadView | null> {
    const [row] = await rows<Row>(this.#sql.find, pipeline);
    return row === undefined ? null : toLead(columns(row));
  }

  /** The holder that writes under this token to this build; null: it is not the holder any more. */
  async holding(rows: Rows, build: BuildKey, { pipeline, token }: LockToken): Promise<LeadView | null> {
    const [row] = await rows<Row>(this.#sql.find, pipeline);
    if (row === undefined) return null;
    const lead = columns(row);
    return lead.token === token && lead.key === build ? toLead(lead) : null;
  }

  async all(rows: Rows): Promise<LeadView[]> {
    return (await rows<Row>(this.#sql.all)).map((row) => toLead(columns(row)));
  }

  /** What a process leads. */
  async ledBy(rows: Rows, holder: ProcessId): Promise<(LeadView & { key: BuildKey })[]> {
    return (await rows<Row>(this.#sql.ledBy, holder)).map((row) => Object.assign(toLead(columns(row)), { key: row[2] }));
  }

  async take(tx: Tx, pipeline: string, build: BuildKey, lead: NewLead): Promise<void> {
    const { token, holder, pid, host, program, programHash } = lead;
    await tx.rows(this.#sql.take, pipeline, build, token, holder, pid, host, program, programHash, await tx.now());
    tx.wrote();
  }

  async beat(tx: Tx, { pipeline, token }: LockToken): Promise<boolean> {
    const beats = (await tx.rows(this.#sql.beat, tx.at, pipeline, token)).length > 0;
    if (beats) tx.wrote();
    return beats;
  }

  async release(tx: Tx, build: BuildKey): Promise<void> {
    if ((await tx.rows(this.#sql.release, build)).length > 0) tx.wrote();
  }

  /**
   * ACTIVE builds that nobody leads, or somebody who is not registered any more, or, by what is known of processes, is gone,
   * or of whom nothing was heard for too long.
   */
  async unled(rows: Rows, at: number | null, { dead, alive }: Known): Promise<BuildKey[]> {
    const found = await rows<[BuildKey]>(this.#sql.unled, at, listOf(dead), listOf(alive));
    return found.map(([key]) => key);
  }
}

function columns(row: Row): LeadColumns {
  const [pipeline, build, key, token, holder, pid, host, program, programHash, acquiredAt, beatAt] = row;
  return { pipeline, build, key, token, holder, pid, host, program, programHash, acquiredAt, beatAt };
}
