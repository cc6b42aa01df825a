import type { JobKey } from "../../../core/text/ids.ts";
import type { Settlement } from "../../store.ts";
import type { Catalog, Settings } from "../catalog.ts";
import { endedSql, HELD } from "../claims/leases.ts";
import { listOf, lists, placeIn, type Value } from "../connection/driver.ts";
import { REFUSED } from "../connection/session-settings.ts";
import type { SingleCall, SingleStatement, Tx } from "../transactions/transaction.ts";
import { Tally } from "./settle-effects.ts";

/** After a batch that a single statement could not settle, this many use a transaction without trying it. */
const BATCHES_WITHOUT_TRY = 8;

interface Selection {
  output: string;
  from: string;
  held: string;
}

const WITH_OUTPUT: Selection = {
  output: "asked.output",
  from: "from unnest($3::bigint[], $4::bigint[], $5::text[]) as asked (key, fence, output)",
  held: HELD,
};

/** $5 is null. Each fence is found by its position in the list, which is a fifth less work for the server. */
const WITHOUT_OUTPUT: Selection = {
  output: "$5::text",
  from: "",
  held: `job.key = any($3::bigint[]) and job.fence = ($4::bigint[])[${placeIn("job.key", "$3")}]
            and coalesce(job.state, '') = 'running'`,
};

/** Quiet jobs, whose end changes no other row, and limited ones, whose end frees slots. */
type Kind = "quiet" | "limited";

type Statements = Record<Kind, string> & { single: SingleStatement };

export class SettleSuccesses {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #sql: Record<"withoutOutput" | "withOutput", Statements>;
  #withoutTry = 0;

  constructor(s: string, { catalog, settings }: { catalog: Catalog; settings: Settings }) {
    this.#catalog = catalog;
    this.#settings = settings;
    const all = (selection: Selection): Statements => ({
      quiet: `with ${settleSql(s, selection, "quiet")} ${UNSETTLED}`,
      limited: `with ${settleSql(s, selection, "limited")} ${UNSETTLED}`,
      single: singleSql(s, selection),
    });
    this.#sql = { withoutOutput: all(WITHOUT_OUTPUT), withOutput: all(WITH_OUTPUT) };
  }

  /** Settles `plain`, which has each job once in the order of keys. Returns the jobs that it has settled. */
  async settle(tx: Tx, plain: readonly Settlement[], kind: Kind = "quiet"): Promise<Set<JobKey>> {
    if (plain.length === 0) return new Set();
    if (!this.#settings.isKnown) await this.#settings.at(tx);
    const { sql, values } = this.#statement(tx, plain);
    const unsettled = await tx.rows<[JobKey]>(sql[kind], ...values);
    if (unsettled.length < plain.length) tx.wrote();
    const settled = new Set(plain.map(({ job }) => job));
    for (const [job] of unsettled) settled.delete(job);
    return settled;
  }

  single<T>(tx: Tx, plain: readonly Settlement[], answer: T): SingleCall<T> | null {
    if (this.#withoutTry > 0) {
      this.#withoutTry--;
      return null;
    }
    tx.onUndo(() => (this.#withoutTry = BATCHES_WITHOUT_TRY));
    const { sql, values } = this.#statement(tx, plain);
    tx.wrote();
    return { statement: sql.single, values, read: () => answer };
  }

  #statement(tx: Tx, plain: readonly Settlement[]): { sql: Statements; values: Value[] } {
    const settings = this.#settings.assumed(tx);
    const isQuiet = (queue: string) => !settings.recordsEvents(queue) && settings.keep(queue, "succeeded") === undefined;
    // Lanes whose queues write no events and keep successes for ever. Null stands for all lanes.
    const lanes =
      settings.hasEvents || settings.hasRetention
        ? [...this.#catalog.lanes()].flatMap(({ id, queue }) => (isQuiet(queue) ? [id] : []))
        : null;
    const outputs = plain.map(({ outcome }) => (outcome.kind === "succeeded" ? outcome.output : null));
    const hasOutputs = outputs.some((output) => output !== null);
    return {
      sql: hasOutputs ? this.#sql.withOutput : this.#sql.withoutOutput,
      values: [
        tx.at,
        tx.tallyShare,
        ...lists(plain, "job", "fence"),
        hasOutputs ? listOf(outputs) : null,
        lanes && listOf(lanes),
      ],
    };
  }
}

/** Another transaction may begin to wait for a limited job at this instant, so the caller checks again in a later statement. */
function kindSql(s: string, kind: Kind): string {
  if (kind === "quiet") return "job.quiet";
  return `job.limits is not null and job.key not in (select upstream from ${s}.waits where upstream = any($3::bigint[]))`;
}

function settleSql(s: string, { output, from, held }: Selection, kind: Kind): string {
  return `
    clock as materialized (select ${s}.clock($1) as now),
    ended as (
      update ${s}.jobs as job
      set state = 'succeeded', output = ${output}, finished_at = (select now from clock), expires_at = null, error = null ${from}
      where ${held} and ${kindSql(s, kind)} and ($6::integer[] is null or job.lane = any($6::integer[]))
      returning job.key, job.lane, job.fence),
    ${endedSql(s, "ended")},
    noted as (
      update ${s}.notes as note set checkpoint = null from ended
      where (select exists (select 1 from ${s}.notes)) and note.job = ended.key and note.checkpoint is not null),
    tallied as (${Tally.within(s, "$2::integer", "succeeded")})`;
}

const UNSETTLED = `
    select key from unnest($3::bigint[]) as asked (key)
    where (select count(*) from ended) < cardinality($3::bigint[]) and key not in (select key from ended)`;

function singleSql(s: string, selection: Selection): SingleStatement {
  return {
    parts: settleSql(s, selection, "quiet"),
    values: 6,
    made: "null::bigint, null::bigint, null::text",
    wrote: "true",
    // The retention backfill waits only for transactions that have written. One that has not must not use the settings it knew.
    settings: `${s}.settings_now()`,
    answer: (verdict) => `
        select case when (select count(*) from ended) < cardinality($3::bigint[]) then ${s}.refuse('${REFUSED.partial}') end, ${verdict}`,
  };
}
