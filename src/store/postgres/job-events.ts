import { jobEvent, type JobEventType } from "../../core/event.ts";
import type { Fence, JobKey } from "../../core/ids.ts";
import { publicId } from "../job-row.ts";
import type { Catalog } from "./catalog.ts";
import { listOf } from "./driver.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./transaction.ts";
import type { Settings } from "./settings.ts";

type Row = [key: JobKey, lane: number, fence: Fence, attempt: number, createdAt: number, id: string | null, error: string | null];

/** What happened to a job. */
export interface Happened {
  type: JobEventType;
  job: JobKey;
  lane: number;
}

/**
 * What happens to jobs, told where their queue asks for it. Payloads are not in it: they may be large, and secret.
 * The jobs' rows are read after the change, so that nobody else pays for carrying their ids about.
 */
export class JobEvents {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #events: Events;
  readonly #rows: string;

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; events: Events }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#events = parts.events;
    this.#rows = `select key, lane, fence, attempt, created_at, id, error from ${s}.jobs where key = any($1::bigint[])`;
  }

  /** Told only where it is asked for. */
  async tell(tx: Tx, happened: readonly Happened[]): Promise<void> {
    const asked = happened.filter(({ lane }) => this.#settings.tells(this.#catalog.lane(lane).queue));
    await this.always(tx, asked);
  }

  /** What an operator does is always told. */
  async always(tx: Tx, happened: readonly Omit<Happened, "lane">[]): Promise<void> {
    if (happened.length === 0) return;
    const rows = await tx.rows<Row>(this.#rows, listOf(happened.map(({ job }) => job)));
    await this.#catalog.knowLanes(
      tx.rows,
      rows.map((row) => row[1]),
    );
    const byKey = new Map(rows.map((row) => [row[0], row]));
    await this.#events.add(
      tx,
      happened.map(({ type, job }) => {
        const [, lane, fence, attempt, createdAt, id, error] = byKey.get(job) as Row;
        const told = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
        return jobEvent(type, told, this.#catalog.lane(lane));
      }),
    );
  }
}
