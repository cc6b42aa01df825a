import { Group, type GroupOptions } from "./group.ts";
import type { Writer } from "./writer.ts";

/** Fewer do not keep a claim waiting long enough to be worth a commit of their own. */
const MANY = 128;
/** So long it keeps its connection when nothing comes, in milliseconds. */
const LINGER = 10_000;

/**
 * A second connection that writes, for the ends of many quick jobs: while claims are under way on the first one, the server
 * can work at both. Neither has to do with the other: what is claimed was pending, and what ends was running. Made when it
 * is needed, which is while a worker runs through a backlog.
 */
export class Ends {
  readonly #writer: Writer;
  readonly #group: Group;
  #leaving: NodeJS.Timeout | null = null;

  constructor(writer: Writer, options: GroupOptions) {
    this.#writer = writer;
    this.#group = new Group(writer, options);
  }

  /** Where so many ends are best written. */
  groupFor(ends: number, first: Group): Group {
    if (ends < MANY) return first;
    this.#leaving ??= setTimeout(() => void this.#leave(), LINGER).unref();
    this.#leaving.refresh();
    return this.#group;
  }

  async close(): Promise<void> {
    if (this.#leaving !== null) clearTimeout(this.#leaving);
    await this.#group.close();
    await this.#writer.close();
  }

  async #leave(): Promise<void> {
    if (this.#group.isIdle) await this.#writer.close().catch(() => {});
    else this.#leaving?.refresh();
  }
}
