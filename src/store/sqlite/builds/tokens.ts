import { approve, type Budget } from "../../../core/budget.ts";
import { hashToken, judgeToken, mint, refusedToken, type StoredToken } from "../../../core/confirmation-token.ts";
import { type TokenColumns, toToken } from "../../build-row.ts";
import type { Approval, BuildRow, MintedToken } from "../../builds.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/** Confirmation tokens, of which only hashes are here. */
export class Tokens {
  readonly #find: Statement;
  readonly #add: Statement;
  readonly #use: Statement;
  readonly #replace: Statement;

  constructor(db: Connection) {
    this.#find = db.prepare(
      `select token.hash, build.id as build, token.pause, token.minted_at, token.expires_at, token.used_at, token.replaced_at
       from holdfast_tokens as token join holdfast_builds as build on build.key = token.build where token.hash = :hash`,
    );
    this.#add = db.prepare(
      `insert into holdfast_tokens (hash, build, pause, minted_at, expires_at)
       values (:hash, :build, :pause, :mintedAt, :expiresAt)`,
    );
    this.#use = db.prepare("update holdfast_tokens set used_at = :now where hash = :hash and used_at is null");
    this.#replace = db.prepare(
      "update holdfast_tokens set replaced_at = :now where build = :build and used_at is null and replaced_at is null",
    );
  }

  /** For a build that is paused; those before it do not count any more. */
  mint(tx: Tx, build: BuildRow, { bytes }: MintedToken): StoredToken {
    const { stored } = mint(bytes, build, tx.now);
    const { hash, pause, mintedAt, expiresAt } = stored;
    this.#replace.runNamed({ build: build.key, now: tx.now });
    this.#add.runNamed({ hash, build: build.key, pause, mintedAt, expiresAt });
    tx.wrote();
    return stored;
  }

  /** The budget that the token lets the build have; the token is used up. Throws where it does not. */
  use(tx: Tx, build: BuildRow, { token: presented, budget }: Approval): Budget {
    const stored = typeof presented === "string" ? this.#stored(presented) : null;
    const verdict = judgeToken({ presented, stored, build, now: tx.now });
    if (!verdict.ok) throw refusedToken(verdict, build);
    const approved = approve(build, budget, build.refused);
    this.#use.runNamed({ hash: verdict.used.hash, now: tx.now });
    tx.wrote();
    return approved;
  }

  #stored(token: string): StoredToken | null {
    const row = this.#find.get<TokenColumns>({ hash: hashToken(token) });
    return row === undefined ? null : toToken(row);
  }
}
