import type { BuildKey } from "../../../core/text/ids.ts";
import type { NamedArtifact } from "../../work.ts";
import type { ArtifactRows } from "../../work/rows.ts";
import { listOf } from "../connection/driver.ts";
import { LOCK_WAIT_MS } from "../connection/session-settings.ts";
import type { Reader } from "../connection/connections.ts";
import type { Tx } from "../transactions/transaction.ts";
import { listsOf } from "./columns.ts";

interface Ref extends NamedArtifact {
  build: BuildKey;
  stage: string;
  path: string;
}

/** Which artifacts there must be, and why: nothing that is referenced here is swept. */
export class ArtifactRefs {
  readonly #sql: Record<"share" | "hold" | "add", string>;
  readonly #referenced: (hashes: readonly string[]) => string;

  constructor(s: string) {
    this.#sql = {
      share: `lock table ${s}.artifacts in row exclusive mode`,
      hold: `lock table ${s}.artifacts in share mode`,
      add: `
        insert into ${s}.artifacts (build, stage, path, name, hash, size)
        select * from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
        on conflict (build, stage, path, name) do update set hash = excluded.hash, size = excluded.size`,
    };
    // By artifacts_hash. A script takes no values.
    this.#referenced = (hashes) => `
      select hash from unnest('${listOf(hashes).replaceAll("'", "''")}'::text[]) as asked (hash)
      where exists (select 1 from ${s}.artifacts where artifacts.hash = asked.hash)`;
  }

  /**
   * Before it is looked which are there, and until the commit. Who asks what is referenced waits for all who hold it, hence
   * sees what they have referenced; those who come after him find what he has put aside missing.
   */
  async share(tx: Tx): Promise<void> {
    await tx.rows(this.#sql.share);
  }

  /** By itself, so that it holds nothing that those need whom it waits for. */
  async referenced(reader: Reader, hashes: readonly string[]): Promise<ReadonlySet<string>> {
    if (hashes.length === 0) return new Set();
    const answers = await reader.script<[string]>(
      "set transaction isolation level read committed",
      `set local lock_timeout = ${LOCK_WAIT_MS}`,
      this.#sql.hold,
      this.#referenced(hashes),
    );
    return new Set((answers.at(-1) as [string][]).map(([hash]) => hash));
  }

  async write(tx: Tx, refs: readonly Ref[]): Promise<void> {
    if (refs.length === 0) return;
    tx.wrote();
    await tx.rows(
      this.#sql.add,
      ...listsOf(
        refs,
        ({ build }) => build,
        ({ stage }) => stage,
        ({ path }) => path,
        ({ name }) => name,
        ({ hash }) => hash,
        ({ size }) => size,
      ),
    );
  }
}

/** The artifacts that are referenced in an operation. */
export class ArtifactSheet implements ArtifactRows {
  #added = new Map<string, Ref>();

  add(build: BuildKey, stage: string, path: string, artifacts: readonly NamedArtifact[]): void {
    for (const { name, hash, size } of artifacts)
      this.#added.set(JSON.stringify([build, stage, path, name]), { build, stage, path, name, hash, size });
  }

  /** What there is to write, once. */
  changes(): Ref[] {
    const added = [...this.#added.values()];
    this.#added = new Map();
    return added;
  }
}
