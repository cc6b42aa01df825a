import { type JobKey, parseGeneratedId } from "../../core/ids.ts";
import type { Job, JobState } from "../../core/job.ts";
import { type JobRow, toJob } from "../job-row.ts";
import type { Catalog } from "./catalog.ts";
import type { Rows } from "./driver.ts";

const COLUMNS = `
  job.key, job.state, job.lane, job.priority, job.attempt, job.crashes, job.run_at, job.created_at, job.started_at, job.finished_at,
  job.id, job.slot, job.input, job.output, job.error, note.fraction, note.message`;
type Row = [
  key: JobKey,
  state: JobState,
  lane: number,
  priority: number,
  attempt: number,
  crashes: number,
  runAt: number,
  createdAt: number,
  startedAt: number | null,
  finishedAt: number | null,
  id: string | null,
  slot: string | null,
  input: string | null,
  output: string | null,
  error: string | null,
  fraction: number | null,
  message: string | null,
];

/** Reading, for people and programs. */
export class Look {
  readonly #catalog: Catalog;
  readonly #sql: Record<"byId", string>;

  constructor(s: string, parts: { catalog: Catalog }) {
    this.#catalog = parts.catalog;
    const jobs = `${s}.jobs as job left join ${s}.notes as note on note.job = job.key`;
    this.#sql = {
      byId: `select ${COLUMNS} from ${jobs} where job.key = ${keyOf(s, "$1", "$2", "$3")}`,
    };
  }

  async get(rows: Rows, id: string): Promise<Job | null> {
    const [row] = await rows<Row>(this.#sql.byId, ...idValues(id));
    if (row === undefined) return null;
    await this.#catalog.knowLanes(rows, [row[2]]);
    return toJob(jobRow(row), this.#catalog.lane(row[2]));
  }
}

/** The store's key of a public id, whichever kind it is: see `idValues`. A chosen id may outlive its job. */
export function keyOf(s: string, id: string, key: string, createdAt: string): string {
  return `coalesce(
    (select job from ${s}.ids where id = ${id}),
    (select key from ${s}.jobs where key = ${key}::bigint and created_at = ${createdAt}::bigint and id is null))`;
}

/** A public id as a statement takes it: as it is, and what it says if it was generated. */
export function idValues(id: string): [id: string, key: number | null, createdAt: number | null] {
  const generated = parseGeneratedId(id);
  return [id, generated?.key ?? null, generated?.createdAt ?? null];
}

function jobRow(row: Row): JobRow {
  const [key, state, lane, priority, attempt, crashes, runAt, createdAt, startedAt, finishedAt, ...texts] = row;
  const [id, slot, input, output, error, fraction, message] = texts;
  return {
    key,
    state,
    lane,
    priority,
    attempt,
    crashes,
    run_at: runAt,
    created_at: createdAt,
    started_at: startedAt,
    finished_at: finishedAt,
    id,
    slot,
    input,
    output,
    error,
    fraction,
    message,
    body: null,
  };
}
