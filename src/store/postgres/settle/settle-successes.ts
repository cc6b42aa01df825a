import type { JobKey } from "../../../core/text/ids.ts";
import type { LeaseState, Settlement } from "../../store.ts";
import type { Catalog, Settings } from "../catalog.ts";
import { endedSql, HELD } from "../claims/leases.ts";
import { listOf, lists, placeIn, type Value } from "../connection/driver.ts";
import { REFUSED } from "../connection/session-settings.ts";
import type { SingleCall, SingleStatement, Tx } from "../transactions/transaction.ts";
import { Tally } from "./settle-effects.ts";
import type { Operation } from "../../points.ts";
import type { Writer } from "../connection/session.ts";
import { GroupCommit, type GroupCommitOptions } from "../transactions/group-commit.ts";
import { type CallHints, splitAnswers } from "../transactions/write-queue.ts";
import type { Settle } from "./settle.ts";

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
  return `job.limits is not null and not exists (select 1 from ${s}.waits where upstream = job.key)`;
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

/** Fewer settlements do not delay a claim long enough to be worth a commit of their own. */
const MIN_SETTLEMENTS = 128;
/** How long the second connection stays open without use, and how long after a failed connect the next one is tried. */
const SECOND_IDLE_MS = 10_000;

/** Thrown if more than its own row follows from a settlement. Nothing is written. */
export class MoreFollows extends Error {}

interface Parts {
  settle: Settle;
  first: GroupCommit;
  writer: Writer;
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints: CallHints<T>): Promise<T>;
}

/** Settles over a second connection while the first claims, which drains a third faster. They never share a job. */
export class SettleQueue {
  readonly #parts: Parts;
  readonly #second: GroupCommit;
  readonly #underWay = new Set<Promise<LeaseState[]>>();
  #idleTimer: NodeJS.Timeout | null = null;
  #opening: Promise<void> | null = null;
  #refusedAt = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(parts: Parts, options: GroupCommitOptions) {
    this.#parts = parts;
    this.#second = new GroupCommit(parts.writer, options);
  }

  async run(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle, first } = this.#parts;
    const rows = settlements.length;
    const quick = settle.isPlain(settlements);
    if (quick && this.#usesSecond(rows)) return this.#settleOverSecond(settlements);
    const run = async (tx: Tx, batches: (readonly Settlement[])[]) => splitAnswers(await settle.run(tx, batches.flat()), batches);
    return first.submitJoined("settle", settlements, run, { rows, quick, single: quick ? settle.single : null });
  }

  async #settleOverSecond(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle } = this.#parts;
    this.#idleTimer ??= setTimeout(() => void this.#closeIdle(), SECOND_IDLE_MS).unref();
    this.#idleTimer.refresh();
    const run = async (tx: Tx, batches: (readonly Settlement[])[]) =>
      splitAnswers(await settle.plain(tx, batches.flat()), batches);
    const settled = this.#second
      .submitJoined("settle", settlements, run, { rows: settlements.length, single: settle.single })
      .catch((error: unknown) => {
        if (!(error instanceof MoreFollows)) throw error;
        return this.#parts.write("settle", (tx) => settle.run(tx, settlements), { owed: true });
      });
    this.#underWay.add(settled);
    try {
      return await settled;
    } finally {
      this.#underWay.delete(settled);
    }
  }

  #usesSecond(settlements: number): boolean {
    const { first, writer } = this.#parts;
    if (settlements < MIN_SETTLEMENTS || !first.onlyClaimsAndSettles || this.#closed) return false;
    if (writer.current !== null) return true;
    if (performance.now() >= this.#refusedAt + SECOND_IDLE_MS)
      this.#opening ??= this.#open().finally(() => (this.#opening = null));
    return false;
  }

  async #open(): Promise<void> {
    try {
      await this.#parts.writer.session();
    } catch {
      // All connections are in use, or the server is down. The first connection reports errors.
      this.#refusedAt = performance.now();
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    if (this.#idleTimer !== null) clearTimeout(this.#idleTimer);
    await Promise.all([this.#opening, this.#second.close()]);
    await Promise.allSettled(this.#underWay);
    await this.#parts.writer.close();
  }

  async #closeIdle(): Promise<void> {
    if (this.#second.isIdle) await this.#parts.writer.close().catch(() => {});
    else this.#idleTimer?.refresh();
  }
}
