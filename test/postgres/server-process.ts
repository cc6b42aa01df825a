import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";

/** "fast" rolls back what is open and ends in order; "immediate" is a crash of the server, with recovery at the next start. */
export type StopMode = "fast" | "immediate";

/** Requests of the owner, and the answers that it gets. */
export type Order = { do: "start" } | { do: "stop"; mode: StopMode };
export type Answer = { place: ServerPlace | null } | { error: string };

/** What it runs. */
export interface Job {
  native: string;
  password: string;
  settings: Record<string, string>;
  /** The folder of a server that is stopped: this one begins as its replica, with a copy of its files. */
  replicaOf?: string;
}

export interface ServerPlace {
  dataFolder: string;
  /** For what processes of this host leave there. */
  aliveFolder: string;
  port: number;
}

/**
 * A process that runs a server for this one and clears up behind it. It is a process of its own, out of reach of Ctrl-C,
 * because the owner may be killed at any time and nothing may stay behind then: no server, no folder.
 */
export class ServerProcess {
  readonly place: ServerPlace;
  readonly #process: ChildProcess;

  static async start(job: Job): Promise<ServerProcess> {
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const child = fork(fileURLToPath(new URL("./children/server-process.ts", import.meta.url)), [JSON.stringify(job)], {
      detached: true,
      execArgv: [],
      env,
      stdio: ["ignore", "ignore", "ignore", "ipc"],
    });
    // A test that forgets to close its server ends nevertheless, and the server with it.
    child.unref();
    try {
      return new ServerProcess(child, (await heard(child)) as ServerPlace);
    } catch (error) {
      await end(child);
      throw error;
    }
  }

  private constructor(child: ChildProcess, place: ServerPlace) {
    this.#process = child;
    this.place = place;
  }

  async ask(order: Order): Promise<void> {
    this.#process.send(order);
    await heard(this.#process);
  }

  /** Resolves when everything is cleared away. */
  end(): Promise<void> {
    return end(this.#process);
  }
}

/** The next answer. One order at a time: answers carry no number. */
async function heard(child: ChildProcess): Promise<ServerPlace | null> {
  const over = new AbortController();
  const gone = once(child, "exit", over).then(([code, signal]): [Answer] => [
    { error: `The server's serverProcess is gone (${code ?? signal}).` },
  ]);
  child.channel?.ref();
  try {
    const [answer] = (await Promise.race([once(child, "message", over), gone])) as [Answer];
    if ("error" in answer) throw new Error(answer.error);
    return answer.place;
  } finally {
    over.abort();
    child.channel?.unref();
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    const ended = once(child, "exit");
    child.ref();
    if (child.connected) child.disconnect();
    await ended;
  }
  if (child.exitCode !== 0) throw new Error("The server's serverProcess did not clear up.");
}
