import type { SettingsView } from "../../../core/limits/settings.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { Settlement } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import { endedSql, HELD } from "../claims/leases.ts";
import { listOf, placeIn, type Value } from "../connection/driver.ts";
import type { Settings } from "../settings.ts";
import { Tally } from "./settle-effects.ts";
import type { Made, SoleStatement } from "../transactions/receipts.ts";
import type { Sole, Tx } from "../transactions/transaction.ts";

/** So many batches go the longer way without asking when one had to. */
const LONGER = 8;

/** How the jobs of a statement are found, and what becomes of their outputs. */
interface Which {
  output: string;
  from: string;
  held: string;
}

/** $5: the output of each. */
const WITH_OUTPUT: Which = {
  output: "asked.output",
  from: "from unnest($3::bigint[], $4::bigint[], $5::text[]) as asked (key, fence, output)",
  held: HELD,
};

/** $5: null, the output of all. The fence of each is found by its place: a fifth less work for the server. */
const BARE: Which = {
  output: "$5::text",
  from: "",
  held: `job.key = any($3::bigint[]) and job.fence = ($4::bigint[])[${placeIn("job.key", "$3")}]
            and coalesce(job.state, '') = 'running'`,
};

/** Whose end one statement writes: of most nothing follows; of those with limits only that they leave their places to others. */
type Kind = "quiet" | "limited";

/** Where it has ended none it has changed nothing, and all of them go the longer way. */
interface SoleSuccesses extends Sole<Set<JobKey>> {
  read: (rows: readonly (readonly unknown[])[]) => Set<JobKey> | null;
}

/** Ends of jobs that have succeeded, and from whose end nothing follows that is in other rows: most there are. */
export class Successes {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #sql: Record<"bare" | "withOutput", Record<Kind, string> & { sole: SoleStatement }>;
  #longer = 0;

  constructor(s: string, { catalog, settings }: { catalog: Catalog; settings: Settings }) {
    this.#catalog = catalog;
    this.#settings = settings;
    const all = (which: Which) => ({
      quiet: `with ${endingSql(s, which, "quiet")} ${LEFT}`,
      limited: `with ${endingSql(s, which, "limited")} ${LEFT}`,
      sole: soleOf(s, which),
    });
    this.#sql = { bare: all(BARE), withOutput: all(WITH_OUTPUT) };
  }

  /** Which of these it has ended; `share`: of the tally. They are in the order of their keys, each once. */
  async end(tx: Tx, plain: readonly Settlement[], share: number, kind: Kind = "quiet"): Promise<Set<JobKey>> {
    if (plain.length === 0) return new Set();
    if (!this.#settings.isKnown) await this.#settings.at(tx);
    const { sql, values } = this.#asked(tx, plain, share);
    const left = await tx.rows<[JobKey]>(sql[kind], ...values);
    return this.#ended(
      tx,
      plain,
      left.map(([job]) => job),
    );
  }

  /** The same as a transaction by itself; null where the last ones were not all of this kind. */
  sole(tx: Tx, plain: readonly Settlement[], share: number): SoleSuccesses | null {
    if (this.#longer > 0) {
      this.#longer--;
      return null;
    }
    const { sql, values } = this.#asked(tx, plain, share);
    return {
      statement: sql.sole,
      values,
      read: ([row]) => {
        const [keys] = row as [string | null];
        if (keys !== null) this.#longer = LONGER;
        const ended = this.#ended(tx, plain, leftIn(keys));
        return ended.size === 0 ? null : ended;
      },
    };
  }

  /** What it has ended when its answer was lost. */
  recall({ keys }: Made, plain: readonly Settlement[]): Set<JobKey> {
    return without(plain, leftIn(keys));
  }

  #asked(
    tx: Tx,
    plain: readonly Settlement[],
    share: number,
  ): { sql: Record<Kind, string> & { sole: SoleStatement }; values: Value[] } {
    const silent = this.#silent(this.#settings.assumed(tx));
    const outputs = plain.map(({ outcome }) => (outcome.kind === "succeeded" ? outcome.output : null));
    const isBare = outputs.every((output) => output === null);
    return {
      sql: isBare ? this.#sql.bare : this.#sql.withOutput,
      values: [
        tx.at,
        share,
        listOf(plain.map(({ job }) => job)),
        listOf(plain.map(({ fence }) => fence)),
        isBare ? null : listOf(outputs),
        silent && listOf(silent),
      ],
    };
  }

  /** The lanes that nobody wants to hear of, as far as they are known: whoever ends a job need not be who claimed it. Null: all. */
  #silent(settings: SettingsView): number[] | null {
    if (!settings.telling && !settings.forgetting) return null;
    const isSilent = (queue: string) => !settings.tells(queue) && settings.keep(queue, "succeeded") === undefined;
    return [...this.#catalog.lanes()].flatMap(({ id, queue }) => (isSilent(queue) ? [id] : []));
  }

  #ended(tx: Tx, plain: readonly Settlement[], left: readonly JobKey[]): Set<JobKey> {
    if (left.length < plain.length) tx.wrote();
    return without(plain, left);
  }
}

/**
 * Which they are. Whoever begins to wait for one that has limits may do so just now: the caller looks again, behind this
 * statement.
 */
function kindSql(s: string, kind: Kind): string {
  if (kind === "quiet") return "job.quiet";
  return `job.limits is not null and not exists (select 1 from ${s}.waits where upstream = job.key)`;
}

/** Counted in the same statement. */
function endingSql(s: string, { output, from, held }: Which, kind: Kind): string {
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

/** Those that it has not ended. */
const LEFT = `
    select key from unnest($3::bigint[]) as asked (key)
    where (select count(*) from ended) < cardinality($3::bigint[]) and key not in (select key from ended)`;

const WROTE = "exists (select 1 from ended)";

function soleOf(s: string, which: Which): SoleStatement {
  return {
    parts: `${endingSql(s, which, "quiet")}, remaining as materialized (select json_agg(key)::text as keys from (${LEFT}) as job)`,
    values: 6,
    made: "null, null, keys from remaining",
    wrote: WROTE,
    // Whoever lists what ended before its queue said how long to keep it waits for those who have written by then. One that
    // has not, and began before, must not go by what it knew.
    settings: `case when ${WROTE} then ${s}.settings_now() else settings end`,
    answer: (verdict) => `select keys, ${verdict} from remaining`,
  };
}

function leftIn(keys: string | null): JobKey[] {
  return keys === null ? [] : (JSON.parse(keys) as JobKey[]);
}

function without(plain: readonly Settlement[], left: readonly JobKey[]): Set<JobKey> {
  const ended = new Set(plain.map(({ job }) => job));
  for (const job of left) ended.delete(job);
  return ended;
}
