import { jobEvent, type JobEventType } from "../../core/event.ts";
import type { Fence, JobKey } from "../../core/ids.ts";
import { publicId } from "../job-row.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";
import type { Settings } from "./settings.ts";

type Row = [lane: number, fence: Fence, attempt: number, createdAt: number, id: string | null, error: string | null];

/**
 * What happens to jobs, told where their queue asks for it. The job's row is read after the change, so that nobody else
 * pays for carrying its id about.
 */
export class JobEvents {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #events: Events;
  readonly #row: Statement;

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings; events: Events }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#events = parts.events;
    this.#row = db.prepare("select lane, fence, attempt, created_at, id, error from holdfast_jobs where key = ?");
  }

  /** Whether any queue asks for events. */
  any(tx: Tx): boolean {
    return this.#settings.at(tx.settings).telling;
  }

  /** Whether the queue of this lane asks for events. */
  asked(tx: Tx, lane: number): boolean {
    const settings = this.#settings.at(tx.settings);
    return settings.telling && settings.tells(this.#catalog.lane(lane).queue);
  }

  /** Told only where it is asked for. */
  tell(tx: Tx, type: JobEventType, lane: number, job: JobKey): void {
    if (this.asked(tx, lane)) this.always(tx, type, job);
  }

  /** What an operator does is always told. */
  always(tx: Tx, type: JobEventType, job: JobKey): void {
    const [lane, fence, attempt, createdAt, id, error] = this.#row.row(job) as Row;
    const told = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
    this.#events.add(tx, jobEvent(type, told, this.#catalog.lane(lane)));
  }
}
