import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

/** "fast" rolls back what is open and ends in order; "immediate" is a crash of the server, with recovery at the next start. */
export type StopMode = "fast" | "immediate";

/** Requests of the owner, and the answers that it gets. */
export type Order = { do: "start" } | { do: "stop"; mode: StopMode };
export type Answer = { premises: Premises | null } | { error: string };

/** What it is hired for. */
export interface Job {
  native: string;
  password: string;
  settings: Record<string, string>;
  /** The folder of a server that is stopped: this one begins as its replica, with a copy of its files. */
  replicaOf?: string;
}

export interface Premises {
  dataFolder: string;
  /** For what processes of this host leave there. */
  aliveFolder: string;
  port: number;
}

/**
 * A process that runs a server for this one and clears up behind it. It is a process of its own, out of reach of Ctrl-C,
 * because the owner may be killed at any time and nothing may stay behind then: no server, no folder.
 */
export class Caretaker {
  readonly premises: Premises;
  readonly #process: ChildProcess;

  static async hire(job: Job): Promise<Caretaker> {
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const child = fork(fileURLToPath(new URL("./children/caretaker.ts", import.meta.url)), [JSON.stringify(job)], {
      detached: true,
      execArgv: [],
      env,
      stdio: ["ignore", "ignore", "ignore", "ipc"],
    });
    // A test that forgets to close its server ends nevertheless, and the server with it.
    child.unref();
    try {
      return new Caretaker(child, (await heard(child)) as Premises);
    } catch (error) {
      await dismiss(child);
      throw error;
    }
  }

  private constructor(child: ChildProcess, premises: Premises) {
    this.#process = child;
    this.premises = premises;
  }

  async ask(order: Order): Promise<void> {
    this.#process.send(order);
    await heard(this.#process);
  }

  /** Resolves when everything is cleared away. */
  dismiss(): Promise<void> {
    return dismiss(this.#process);
  }
}

/** The next answer. One order at a time: answers carry no number. */
async function heard(child: ChildProcess): Promise<Premises | null> {
  const over = new AbortController();
  const gone = once(child, "exit", over).then(([code, signal]): [Answer] => [
    { error: `The server's caretaker is gone (${code ?? signal}).` },
  ]);
  child.channel?.ref();
  try {
    const [answer] = (await Promise.race([once(child, "message", over), gone])) as [Answer];
    if ("error" in answer) throw new Error(answer.error);
    return answer.premises;
  } finally {
    over.abort();
    child.channel?.unref();
  }
}

async function dismiss(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    const ended = once(child, "exit");
    child.ref();
    if (child.connected) child.disconnect();
    await ended;
  }
  if (child.exitCode !== 0) throw new Error("The server's caretaker did not clear up.");
}
