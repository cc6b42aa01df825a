import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import type { Name, Purpose } from "./contender.ts";

/** What a stage can be told to do. Rates are jobs a second; times the kernel's, in milliseconds. */
export interface Acts {
  open: { ask: { url: string; purpose: Purpose }; answer: null };
  close: { ask: null; answer: null };
  /** Each awaited before the next, or, `atOnce`, that many callers who each do so. */
  enqueue: { ask: { jobs: number; atOnce: number }; answer: number };
  bulk: { ask: { jobs: number }; answer: number };
  drain: { ask: { jobs: number }; answer: number };
  listen: { ask: null; answer: null };
  ping: { ask: { i: number }; answer: { called: number; acknowledged: number } };
}

export type Act = { [K in keyof Acts]: { act: K; ask: Acts[K]["ask"] } }[keyof Acts];

/** A process in which one of them is measured: none has another's garbage to collect, and each is compiled and warm. */
export class Stage {
  readonly name: Name;
  readonly #process: ChildProcess;

  /** `kept`: the folder where what was compiled once is kept, for threads that start while it is measured. */
  constructor(name: Name, kept: string) {
    this.name = name;
    const env = { ...process.env, NODE_COMPILE_CACHE: kept };
    this.#process = fork(new URL("./stage-process.ts", import.meta.url), [name], { env });
  }

  async tell<K extends keyof Acts>(act: K, ask: Acts[K]["ask"]): Promise<Acts[K]["answer"]> {
    this.#process.send({ act, ask });
    for (;;) {
      const message = await this.#heard();
      if ("answer" in message) return message.answer as Acts[K]["answer"];
      if ("error" in message) throw new Error(`${this.name}: ${message.error}`);
    }
  }

  /** When the job with that number started, told by a stage that listens. */
  async started(i: number): Promise<number> {
    for (;;) {
      const message = await this.#heard();
      if ("started" in message && message.started.i === i) return message.started.at;
    }
  }

  async #heard(): Promise<Message> {
    const over = new AbortController();
    const gone = once(this.#process, "exit", over).then(([code, signal]): [Message] => [{ error: `ended (${code ?? signal})` }]);
    try {
      return ((await Promise.race([once(this.#process, "message", over), gone])) as [Message])[0];
    } finally {
      over.abort();
    }
  }

  async end(): Promise<void> {
    const ended = once(this.#process, "exit");
    this.#process.disconnect();
    await ended;
  }
}

export type Message = { answer: unknown } | { error: string } | { started: { i: number; at: number } };
