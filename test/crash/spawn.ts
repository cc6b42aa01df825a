import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";

/** What a child says by IPC. */
export interface Message {
  type: string;
  [data: string]: unknown;
}

export interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
}

export interface How {
  /** It has pid 1, among pids of its own. */
  pidNamespace?: boolean;
  /** The same, and nothing of the folder by which processes of one host know each other. */
  otherHost?: boolean;
  /** Its host's clock is wrong by as many milliseconds as this file says. */
  clock?: string;
}

/** Generous: it ends a test that hangs, and decides nothing else. */
const DEADLINE = 40_000;
const living = new Set<Child>();
process.once("exit", () => {
  for (const child of living) child.kill();
});

/** Why workers cannot be given a pid namespace of their own here, or null. */
export function whyNoNamespace(): string | null {
  const tried = spawnSync("unshare", ["-pf", "--mount-proc", "--kill-child", "true"]);
  return tried.status === 0
    ? null
    : `unshare -pf is not permitted here: ${tried.error?.message ?? tried.stderr.toString().trim()}`;
}

/** A real process that runs one of the scripts in children/, told what to do by its one argument. */
export class Child {
  readonly ended: Promise<Ended>;
  readonly #process: ChildProcess;
  readonly #unread: Message[] = [];
  readonly #readers = new Set<() => void>();
  #end: Ended | null = null;
  #stderr = "";

  constructor(script: string, options: object, how: How = {}) {
    const file = fileURLToPath(new URL(`./children/${script}.ts`, import.meta.url));
    const wrong = how.clock === undefined ? [] : ["--import", new URL("./children/wrong-clock.ts", import.meta.url).href];
    const command = [process.execPath, ...wrong, file, JSON.stringify(options)];
    if (how.otherHost) command.unshift("sh", "-c", 'mount -t tmpfs none "${HOLDFAST_ALIVE:-/var/tmp}" && exec "$@"', "sh");
    if (how.pidNamespace || how.otherHost)
      command.unshift("unshare", how.otherHost ? "-mpf" : "-pf", "--mount-proc", "--kill-child");
    const { NODE_TEST_CONTEXT: _, ...inherited } = process.env;
    const env = { ...inherited, ...(how.clock === undefined ? {} : { HOLDFAST_TEST_CLOCK: how.clock }) };
    this.#process = spawn(command[0] as string, command.slice(1), { stdio: ["ignore", "inherit", "pipe", "ipc"], env });
    living.add(this);
    this.#process.stderr?.on("data", (text) => (this.#stderr += String(text)));
    this.#process.on("message", (message) => {
      this.#unread.push(message as Message);
      this.#tell();
    });
    // "close" comes after the last message and the last word on stderr.
    this.ended = new Promise((resolve) => {
      this.#process.once("close", (code, signal) => {
        living.delete(this);
        this.#end = { code, signal };
        resolve(this.#end);
        this.#tell();
      });
    });
  }

  get pid(): number {
    return this.#process.pid as number;
  }

  get stderr(): string {
    return this.#stderr;
  }

  get isOver(): boolean {
    return this.#end !== null;
  }

  send(message: Message): void {
    // It may have died meanwhile; who waits for the answer will hear of that.
    if (this.#process.connected) this.#process.send(message, () => {});
  }

  kill(signal: NodeJS.Signals = "SIGKILL"): void {
    if (this.#end === null) this.#process.kill(signal);
  }

  /** Messages of this type that came and were not taken. */
  taken(type: string): Message[] {
    const found = this.#unread.filter((message) => message.type === type);
    for (const message of found) this.#unread.splice(this.#unread.indexOf(message), 1);
    return found;
  }

  /** The next message of this type, the oldest first. */
  next(type: string): Promise<Message> {
    return this.#await(`the message "${type}"`, () => {
      const at = this.#unread.findIndex((message) => message.type === type);
      return at < 0 ? undefined : this.#unread.splice(at, 1)[0];
    });
  }

  /** How it ended, when it does. */
  async end(): Promise<Ended> {
    return this.#await("its end", () => this.#end ?? undefined);
  }

  #await<T>(what: string, look: () => T | undefined): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const give = (settle: () => void) => {
        clearTimeout(deadline);
        this.#readers.delete(read);
        settle();
      };
      const read = () => {
        const found = look();
        if (found !== undefined) give(() => resolve(found));
        else if (this.#end !== null) give(() => reject(this.#without(what, `ended (${JSON.stringify(this.#end)})`)));
      };
      const deadline = setTimeout(() => give(() => reject(this.#without(what, "is silent"))), DEADLINE);
      this.#readers.add(read);
      read();
    });
  }

  #without(what: string, why: string): Error {
    const unread = this.#unread.map((message) => JSON.stringify(message)).join("\n");
    return new Error(`The child ${this.pid} ${why} without ${what}.\nIt said: ${unread}\nOn stderr: ${this.#stderr}`);
  }

  #tell(): void {
    for (const read of this.#readers) read();
  }
}
