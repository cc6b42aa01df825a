import {
  approve,
  type Budget,
  hashToken,
  judgeToken,
  mint,
  refusedToken,
  type StoredToken,
} from "../../../core/pipelines/budget.ts";
import { type Approval, type BuildRow, type MintedToken, type TokenColumns, toToken } from "../../builds.ts";
import type { Dialect, Reads, Script, Tx } from "../script.ts";

/** Confirmation tokens, of which only hashes are stored. A transaction that uses them has locked the row of their build. */
export class Tokens {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  /** A token for a paused build; those minted before do not count any more. */
  *mint(tx: Tx, build: BuildRow, { bytes }: MintedToken): Script<StoredToken> {
    const { stored } = mint(bytes, build, yield* tx.time());
    const { hash, pause, mintedAt, expiresAt } = stored;
    yield* tx.run(this.#sql.replace, { build: build.key, at: mintedAt });
    yield* tx.run(this.#sql.add, { hash, build: build.key, pause, mintedAt, expiresAt });
    return stored;
  }

  /** Uses the token up; the budget that it lets the build have. Throws if it is not accepted. */
  *use(tx: Tx, build: BuildRow, { token: presented, budget }: Approval): Script<Budget> {
    const now = yield* tx.time();
    const stored = typeof presented === "string" ? yield* this.#find(tx, presented) : null;
    const verdict = judgeToken({ presented, stored, build, now });
    if (!verdict.ok) throw refusedToken(verdict, build);
    const approved = approve(build, budget, build.refused);
    yield* tx.run(this.#sql.use, { hash: verdict.used.hash, at: now });
    return approved;
  }

  *#find(db: Reads, token: string): Script<StoredToken | null> {
    const row = yield* db.get<TokenColumns>(this.#sql.find, { hash: hashToken(token) });
    return row === undefined ? null : toToken(row);
  }
}

function statements({ table }: Dialect) {
  const tokens = table("tokens");
  return {
    find: `
      select token.hash, build.id as build, token.pause, token.minted_at, token.expires_at, token.used_at, token.replaced_at
      from ${tokens} as token join ${table("builds")} as build on build.key = token.build where token.hash = :hash`,
    add: `
      insert into ${tokens} (hash, build, pause, minted_at, expires_at) values (:hash, :build, :pause, :mintedAt, :expiresAt)`,
    use: `update ${tokens} set used_at = :at where hash = :hash and used_at is null`,
    replace: `update ${tokens} set replaced_at = :at where build = :build and used_at is null and replaced_at is null`,
  };
}
