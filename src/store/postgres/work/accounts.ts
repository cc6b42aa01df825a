import type { BuildKey } from "../../../core/text/ids.ts";
import { ACCOUNT, type Account, type AccountRow, Books, hasChanged, toAccount } from "../../work/books.ts";
import { listOf } from "../connection/driver.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transactions/transaction.ts";
import { listsOf } from "./columns.ts";

const MOST = Number.MAX_SAFE_INTEGER;

/** The accounts of builds. Their rows are locked when they are read, in the order of their keys. */
export class Accounts {
  readonly #settings: Settings;
  readonly #sql: Record<"load" | "write" | "block" | "count" | "spend", string>;

  constructor(s: string, settings: Settings) {
    this.#settings = settings;
    this.#sql = {
      load: `
        select key, ${ACCOUNT} from ${s}.builds
        where key = any($1::bigint[] || array(select distinct build from ${s}.work where job = any($2::bigint[])))
        order by key for no key update`,
      // What is added, and not what it comes to: an operation may have several that read the same row.
      write: `
        update ${s}.builds as old set
          spent_micros = least(old.spent_micros + new.spent_micros, ${MOST}), spent_tokens = least(old.spent_tokens + new.spent_tokens, ${MOST}),
          reserved_micros = greatest(old.reserved_micros + new.reserved_micros, 0), reserved_tokens = greatest(old.reserved_tokens + new.reserved_tokens, 0),
          open = old.open + new.open, failed = old.failed + new.failed, listing = coalesce(new.listing, old.listing)
        from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
          as new (key, spent_micros, spent_tokens, reserved_micros, reserved_tokens, open, failed, listing)
        where old.key = new.key
        returning old.queue, old.state = 'ACTIVE' and new.failed > 0 and old.failed > old.max_failures`,
      block: `
        update ${s}.builds as old set blocked = new.blocked, refused_micros = new.micros, refused_tokens = new.tokens
        from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) as new (key, blocked, micros, tokens)
        where old.key = new.key`,
      count: `
        update ${s}.build_stages as old set ran = old.ran + new.ran, cached = old.cached + new.cached,
          failed = old.failed + new.failed, passed = old.passed + new.passed, open = old.open + new.open
        from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
          as new (build, stage, ran, cached, failed, passed, open)
        where old.build = any($1::bigint[]) and old.build = new.build and old.stage = new.stage`,
      spend: `
        insert into ${s}.stage_costs as old (pipeline, stage, attempts, micros, tokens)
        select * from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
          as new (pipeline, stage, attempts, micros, tokens) order by pipeline collate "C", stage collate "C"
        on conflict (pipeline, stage) do update set attempts = old.attempts + excluded.attempts,
          micros = least(old.micros + excluded.micros, ${MOST}), tokens = least(old.tokens + excluded.tokens, ${MOST})`,
    };
  }

  /** Those of these builds, and of the builds that these jobs are work items of. */
  async load(tx: Tx, builds: readonly BuildKey[], jobs: readonly number[]): Promise<LoadedBooks> {
    const rows = await tx.rows<[BuildKey, ...AccountRow]>(this.#sql.load, listOf(builds), listOf(jobs));
    return new LoadedBooks(rows.map(([key, ...row]) => toAccount(key, row)));
  }

  /** Once for each operation: it is forgotten then. */
  async write(tx: Tx, books: LoadedBooks): Promise<void> {
    const { accounts, costsSince: costs } = books;
    books.forget();
    const [tooMuch] = await Promise.all([
      this.#change(tx, accounts.filter(hasChanged)),
      this.#block(tx, accounts),
      this.#count(tx, accounts),
      costs.length === 0
        ? null
        : tx.rows(
            this.#sql.spend,
            ...listsOf(
              costs,
              ({ pipeline }) => pipeline,
              ({ stage }) => stage,
              ({ attempts }) => attempts,
              ({ spent }) => spent.micros,
              ({ spent }) => spent.tokens,
            ),
          ),
    ]);
    if (costs.length > 0) tx.wrote();
    for (const queue of tooMuch) await this.#settings.pause(tx, queue, true);
  }

  /** The queues of builds of which more has failed than may. */
  async #change(tx: Tx, changed: readonly Account[]): Promise<string[]> {
    if (changed.length === 0) return [];
    tx.wrote();
    const rows = await tx.rows<[string, boolean | null]>(
      this.#sql.write,
      ...listsOf(
        changed,
        ({ build }) => build,
        ({ was, ledger }) => ledger.spent.micros - was.spent.micros,
        ({ was, ledger }) => ledger.spent.tokens - was.spent.tokens,
        ({ was, ledger }) => ledger.reserved.micros - was.reserved.micros,
        ({ was, ledger }) => ledger.reserved.tokens - was.reserved.tokens,
        ({ open }) => open,
        ({ failed }) => failed,
        ({ listing }) => listing,
      ),
    );
    return rows.flatMap(([queue, isTooMuch]) => (isTooMuch ? [queue] : []));
  }

  async #block(tx: Tx, accounts: readonly Account[]): Promise<void> {
    const blocked = accounts.flatMap(({ build, blocked: by }) => (by === null ? [] : [{ build, ...by }]));
    if (blocked.length === 0) return;
    tx.wrote();
    await tx.rows(
      this.#sql.block,
      ...listsOf(
        blocked,
        ({ build }) => build,
        ({ reason }) => reason,
        ({ refused }) => refused.micros,
        ({ refused }) => refused.tokens,
      ),
    );
  }

  async #count(tx: Tx, accounts: readonly Account[]): Promise<void> {
    const counts = accounts.flatMap(({ build, stages }) => [...stages].map(([stage, n]) => ({ build, stage, n })));
    if (counts.length === 0) return;
    tx.wrote();
    await tx.rows(
      this.#sql.count,
      ...listsOf(
        counts,
        ({ build }) => build,
        ({ stage }) => stage,
        ({ n }) => n.ran,
        ({ n }) => n.cached,
        ({ n }) => n.failed,
        ({ n }) => n.passed,
        ({ n }) => n.open,
      ),
    );
  }
}

/** Accounts that were read before anything is decided. */
export class LoadedBooks extends Books {
  readonly #loaded: Map<BuildKey, Account>;

  constructor(accounts: readonly Account[]) {
    super();
    this.#loaded = new Map(accounts.map((account) => [account.build, account]));
  }

  protected override read(build: BuildKey): Account {
    const account = this.#loaded.get(build);
    if (account === undefined) throw new Error(`there is no build ${build}`);
    return account;
  }
}
