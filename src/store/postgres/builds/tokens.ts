import { approve, type Budget } from "../../../core/budget.ts";
import { hashToken, judgeToken, mint, refusedToken, type StoredToken } from "../../../core/confirmation-token.ts";
import { toToken } from "../../build-row.ts";
import type { Approval, BuildRow, MintedToken } from "../../builds.ts";
import type { Tx } from "../transaction.ts";

type Row = [
  hash: string,
  build: string,
  pause: number,
  mintedAt: number,
  expiresAt: number,
  usedAt: number | null,
  replacedAt: number | null,
];

/** Confirmation tokens, of which only hashes are here. They are read and written under the row of their build. */
export class Tokens {
  readonly #sql: Record<"find" | "add" | "use" | "replace", string>;

  constructor(s: string) {
    this.#sql = {
      find: `
        select token.hash, build.id, token.pause, token.minted_at, token.expires_at, token.used_at, token.replaced_at
        from ${s}.tokens as token join ${s}.builds as build on build.key = token.build where token.hash = $1`,
      add: `insert into ${s}.tokens (hash, build, pause, minted_at, expires_at) values ($1, $2, $3, $4, $5)`,
      use: `update ${s}.tokens set used_at = $2 where hash = $1 and used_at is null`,
      replace: `update ${s}.tokens set replaced_at = $2 where build = $1 and used_at is null and replaced_at is null`,
    };
  }

  /** For a build that is paused; those before it do not count any more. */
  async mint(tx: Tx, build: BuildRow, { bytes }: MintedToken): Promise<StoredToken> {
    const now = await tx.now();
    const { stored } = mint(bytes, build, now);
    const { hash, pause, mintedAt, expiresAt } = stored;
    await tx.rows(this.#sql.replace, build.key, now);
    await tx.rows(this.#sql.add, hash, build.key, pause, mintedAt, expiresAt);
    tx.wrote();
    return stored;
  }

  /** The budget that the token lets the build have; the token is used up. Throws where it does not. */
  async use(tx: Tx, build: BuildRow, { token: presented, budget }: Approval): Promise<Budget> {
    const now = await tx.now();
    const stored = typeof presented === "string" ? await this.#stored(tx, presented) : null;
    const verdict = judgeToken({ presented, stored, build, now });
    if (!verdict.ok) throw refusedToken(verdict, build);
    const approved = approve(build, budget, build.refused);
    await tx.rows(this.#sql.use, verdict.used.hash, now);
    tx.wrote();
    return approved;
  }

  async #stored(tx: Tx, token: string): Promise<StoredToken | null> {
    const [row] = await tx.rows<Row>(this.#sql.find, hashToken(token));
    if (row === undefined) return null;
    const [hash, build, pause, minted_at, expires_at, used_at, replaced_at] = row;
    return toToken({ hash, build, pause, minted_at, expires_at, used_at, replaced_at });
  }
}
