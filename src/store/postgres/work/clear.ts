import type { Clearing } from "../../work.ts";
import type { Cancel } from "../cancel.ts";
import type { Rows } from "../driver.ts";
import type { Limits } from "../limits.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transaction.ts";
import type { Leftovers } from "./leftovers.ts";
import type { Sheets } from "./sheets.ts";

/** Does away with work that nobody wants any more. */
export class Clear {
  readonly #leftovers: Leftovers;
  readonly #settings: Settings;
  readonly #limits: Limits;
  readonly #cancel: Cancel;
  readonly #sheets: Sheets;

  constructor(parts: { leftovers: Leftovers; settings: Settings; limits: Limits; cancel: Cancel; sheets: Sheets }) {
    this.#leftovers = parts.leftovers;
    this.#settings = parts.settings;
    this.#limits = parts.limits;
    this.#cancel = parts.cancel;
    this.#sheets = parts.sheets;
  }

  async isNeeded(rows: Rows, clearing: Clearing): Promise<boolean> {
    const builds = await this.#leftovers.builds(rows, clearing);
    if (builds.length === 0) return false;
    const keys = builds.map(({ key }) => key);
    return (await this.#leftovers.jobs(rows, keys, { ...clearing, limit: 1 })).length > 0;
  }

  async run(tx: Tx, clearing: Clearing): Promise<number> {
    const builds = await this.#leftovers.builds(tx.rows, clearing);
    if (builds.length === 0) return 0;
    await this.#settings.at(tx);
    await this.#limits.lock(
      tx,
      builds.map(({ queue }) => queue),
    );
    const keys = builds.map(({ key }) => key);
    const jobs = await this.#leftovers.jobs(tx.rows, keys, clearing);
    await this.#sheets.knowLanes(
      tx,
      jobs.map(({ lane }) => lane),
    );
    const sheet = await this.#sheets.ending(tx, jobs);
    if (sheet === null) return 0;
    const dropped = await this.#cancel.quietly(
      tx,
      jobs.map(({ job }) => job),
    );
    for (const [job, was] of dropped) sheet.items.dropped(job, was);
    await sheet.close(tx);
    return dropped.size;
  }
}
