import type { BuildKey, ProcessId } from "../../../core/ids.ts";
import { type LeadColumns, toLead } from "../../build-row.ts";
import { LEAD_TTL, type LeadView, type LockToken, type NewLead } from "../../builds.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/** Those whose process is on the list: a dead one is struck off when it is found, and its lock is free with that. */
const REGISTERED = "exists (select 1 from holdfast_processes where id = lead.holder)";

/** Who leads the builds of each pipeline: the orchestrator's lock. */
export class Leads {
  readonly #find: Statement;
  readonly #held: Statement;
  readonly #all: Statement;
  readonly #take: Statement;
  readonly #beat: Statement;
  readonly #release: Statement;
  readonly #orphans: Statement;
  readonly #ledBy: Statement;

  constructor(db: Connection) {
    const read = `select lead.pipeline, build.id as build, build.key, lead.token, lead.holder, lead.pid, lead.host, lead.program,
        lead.program_hash as programHash, lead.acquired_at as acquiredAt, lead.beat_at as beatAt
      from holdfast_leads as lead join holdfast_builds as build on build.key = lead.build`;
    this.#find = db.prepare(`${read} where lead.pipeline = :pipeline`);
    this.#held = db.prepare(`${read} where lead.pipeline = :pipeline and ${REGISTERED}`);
    this.#all = db.prepare(`${read} order by lead.pipeline`);
    // One statement: where somebody has it, it throws, whatever was looked up before.
    this.#take = db.prepare(
      `insert into holdfast_leads (pipeline, build, token, holder, pid, host, program, program_hash, acquired_at, beat_at)
       values (:pipeline, :build, :token, :holder, :pid, :host, :program, :programHash, :now, :now)`,
    );
    this.#beat = db.prepare("update holdfast_leads set beat_at = :now where pipeline = :pipeline and token = :token");
    this.#release = db.prepare("delete from holdfast_leads where build = :build");
    this.#ledBy = db.prepare(`${read} where lead.holder = :holder order by build.key`);
    // By holdfast_builds_unended, whose condition is written out so that SQLite sees it.
    this.#orphans = db.prepare(
      `select build.key from holdfast_builds as build
         left join holdfast_leads as lead on lead.pipeline = build.pipeline and lead.build = build.key
       where build.state = 'ACTIVE' and build.state not in ('SUCCESS', 'FAILED', 'ABANDONED')
         and (:pipeline is null or build.pipeline = :pipeline)
         and (lead.build is null or not ${REGISTERED}
           or lead.holder in (select value from json_each(:dead))
           or (lead.beat_at <= :now - ${LEAD_TTL} and lead.holder not in (select value from json_each(:alive))))
       order by +build.key`,
    );
  }

  /** Null: nobody has it, or only one who is gone. */
  held(pipeline: string): LeadView | null {
    const row = this.#held.get<LeadColumns>({ pipeline });
    return row === undefined ? null : toLead(row);
  }

  /** Whoever has it, alive or not. */
  find(pipeline: string): LeadView | null {
    const row = this.#find.get<LeadColumns>({ pipeline });
    return row === undefined ? null : toLead(row);
  }

  /** The holder that writes under this token to this build; null: it is not the holder any more. */
  holding(build: BuildKey, { pipeline, token }: LockToken): LeadView | null {
    const row = this.#find.get<LeadColumns>({ pipeline });
    return row === undefined || row.token !== token || row.key !== build ? null : toLead(row);
  }

  all(): LeadView[] {
    return this.#all.all<LeadColumns>().map(toLead);
  }

  /** What a process leads. */
  ledBy(holder: ProcessId): (LeadView & { key: BuildKey })[] {
    return this.#ledBy.all<LeadColumns>({ holder }).map((row) => Object.assign(toLead(row), { key: row.key }));
  }

  take(tx: Tx, pipeline: string, build: BuildKey, lead: NewLead): void {
    const { token, holder, pid, host, program, programHash } = lead;
    this.#take.runNamed({ pipeline, build, token, holder, pid, host, program, programHash, now: tx.now });
    tx.wrote();
  }

  beat(tx: Tx, { pipeline, token }: LockToken): boolean {
    const beats = this.#beat.runNamed({ pipeline, token, now: tx.now }) > 0;
    if (beats) tx.wrote();
    return beats;
  }

  release(tx: Tx, build: BuildKey): void {
    if (this.#release.runNamed({ build }) > 0) tx.wrote();
  }

  /** ACTIVE builds of this pipeline that nobody leads, or somebody who is not registered any more. */
  unledOf(pipeline: string): BuildKey[] {
    return this.#unled({ pipeline, now: 0, dead: "[]", alive: "[]" });
  }

  /** The same of all pipelines, by what is known of processes, and by how long nothing was heard of the others. */
  unled(known: { dead: readonly ProcessId[]; alive: readonly ProcessId[] }, now: number): BuildKey[] {
    return this.#unled({ pipeline: null, now, dead: JSON.stringify(known.dead), alive: JSON.stringify(known.alive) });
  }

  #unled(params: { pipeline: string | null; now: number; dead: string; alive: string }): BuildKey[] {
    return this.#orphans.all<{ key: BuildKey }>(params).map(({ key }) => key);
  }
}
