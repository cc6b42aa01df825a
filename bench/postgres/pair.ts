import type { Name } from "./contender.ts";
import { Stage } from "./stage.ts";

/** One of them twice: who hands in a job, and in a process of its own who waits for it. */
export class Pair {
  readonly name: Name;
  readonly worker: Stage;
  readonly #producer: Stage;
  #url = "";
  /** Until the job starts, in milliseconds: since it was handed in, and since that was acknowledged. */
  readonly times = { call: [] as number[], answer: [] as number[] };

  constructor(producer: Stage, kept: string) {
    this.name = producer.name;
    this.#producer = producer;
    this.worker = new Stage(producer.name, kept);
  }

  async open(url: string): Promise<void> {
    this.#url = url;
    for (const stage of [this.#producer, this.worker]) await stage.tell("open", { url, purpose: "latency" });
    await this.worker.tell("listen", null);
  }

  /** Counted from number 0 on. */
  async ping(i: number): Promise<void> {
    const started = this.worker.started(i);
    const [{ called, acknowledged }, at] = await Promise.all([this.#producer.tell("ping", { i }), started]);
    if (i < 0) return;
    this.times.call.push(at - called);
    this.times.answer.push(Math.max(0, at - acknowledged));
  }

  /** Returns the database's address, so that it can be dropped. */
  async close(): Promise<string> {
    for (const stage of [this.worker, this.#producer]) await stage.tell("close", null);
    return this.#url;
  }
}
