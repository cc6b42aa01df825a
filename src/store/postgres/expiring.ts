import type { Catalog } from "./catalog.ts";
import { listOf } from "./driver.ts";
import type { Ended } from "./endings.ts";
import type { Tx } from "./group.ts";
import type { Settings } from "./settings.ts";

/** Finished jobs of queues that do not keep them for ever, in the order in which they ended. */
export class Expiring {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #sql: Record<"add", string>;

  constructor(s: string, parts: { catalog: Catalog; settings: Settings }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#sql = {
      add: `
        insert into ${s}.expiring (lane, state, finished_at, job)
        select lane, state, $1, job from unnest($2::integer[], $3::text[], $4::bigint[]) as ended (lane, state, job)
        on conflict do nothing`,
    };
  }

  /** Lists those of them that are not kept for ever. */
  async add(tx: Tx, ended: readonly Ended[], finishedAt: number): Promise<void> {
    const listed = ended.filter(({ lane, state }) => this.#settings.keep(this.#catalog.lane(lane).queue, state) !== undefined);
    if (listed.length === 0) return;
    await tx.rows(
      this.#sql.add,
      finishedAt,
      listOf(listed.map(({ lane }) => lane)),
      listOf(listed.map(({ state }) => state)),
      listOf(listed.map(({ job }) => job)),
    );
  }
}
