import type { ProcessId } from "../../core/text/ids.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import {
  type AskedProcess,
  type Life,
  lifeOf,
  type NewProcess,
  type ProcessRow,
  type ProbedProcesses,
  type RegisteredProcess,
  stopAsked,
  toProcess,
  type Works,
  worksText,
} from "../processes.ts";
import type { Alive } from "../alive.ts";
import type { Audit } from "../sql/audit.ts";
import { runSync } from "../sql/script.ts";
import type { StoreAccess } from "./scripts.ts";
import type { Connection, DriverName } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { ProcessStore } from "../store.ts";

interface Parts {
  audit: Audit;
  driver: DriverName;
  alive: Alive | null;
  token: string | null;
  beWitness: (token: string) => void;
  onRegistered: () => Promise<void>;
}

export class Processes implements ProcessStore {
  readonly #access: StoreAccess;
  readonly #parts: Parts;
  #token: string | null;
  self: ProcessId | null = null;
  #boot = "";
  readonly #sql;

  constructor(db: Connection, parts: Parts, access: StoreAccess) {
    this.#access = access;
    this.#parts = parts;
    this.#token = parts.token;
    this.#sql = {
      add: db.prepare(
        `insert into holdfast_processes (alive, identity, driver, pid, host, boot, program, stoppable, started_at)
         values (:alive, :identity, :driver, :pid, :host, :boot, :program, :stoppable, :now) returning id`,
      ),
      otherDriver: db.prepare("select driver from holdfast_processes where identity = :identity and driver <> :driver limit 1"),
      all: db.prepare(
        `select id, alive, pid, host, boot, program, started_at as startedAt, works, stoppable, stop
         from holdfast_processes order by id`,
      ),
      announce: db.prepare("update holdfast_processes set works = ? where id = ?"),
      askToStop: db.prepare(
        `update holdfast_processes set stop = :drain where id = :id and stoppable = 1 and stop is null
         returning pid, host, program`,
      ),
      // Running jobs refer to the row of their process until they are reclaimed.
      remove: db.prepare(
        `delete from holdfast_processes
         where id = :id and not exists (select 1 from holdfast_jobs where state = 'running' and holder = :id)`,
      ),
    };
  }

  /** Makes the process's first commit. After it, no unfinished fsync of another process can lose what this process reads. */
  async register(process: NewProcess): Promise<ProcessId> {
    const alive = await this.#access.read(() => this.#prove());
    await this.#access.read(() => this.#parts.beWitness(alive));
    const id = await this.#access.write("register", (tx) => this.#enter(tx, process, alive));
    this.#boot = process.boot;
    this.#parts.alive?.sweep(new Set(this.#registered().map(({ alive }) => alive)));
    this.self = id;
    await this.#parts.onRegistered();
    return id;
  }

  #prove(): string {
    const token = this.#token ?? this.#parts.alive?.hold() ?? "";
    this.#token = null;
    return token;
  }

  #enter(tx: Tx, process: NewProcess, alive: string): ProcessId {
    const driver = this.#parts.driver;
    const { identity = "", pid, host, boot, program } = process;
    const stoppable = process.stoppable ? 1 : 0;
    const other = identity === "" ? undefined : this.#sql.otherDriver.get<{ driver: string }>({ identity, driver });
    // Two SQLite libraries on one file in one process drop each other's locks, and each takes the other for dead.
    if (other !== undefined)
      throw new HoldfastError(
        "DRIVER_DIFFERS",
        `A thread of this process has the database open with "${other.driver}", and "${driver}" was asked for.`,
        "Use one driver for a file in all threads of a process.",
      );
    const row = { alive, driver, identity, pid, host, boot, program, stoppable, now: tx.now };
    const { id } = this.#sql.add.get<{ id: ProcessId }>(row) as { id: ProcessId };
    tx.wrote();
    return id;
  }

  probe(boot = this.#boot): Promise<ProbedProcesses> {
    return this.#access.read(() => {
      const processes = this.#registered();
      this.#parts.alive?.keepOnly(new Set(processes.map(({ alive }) => alive)));
      const others = processes.filter(({ id }) => id !== this.self);
      return {
        self: processes.find(({ id }) => id === this.self) ?? null,
        others: others.map((process) => ({ process, life: this.#life(process, boot) })),
      };
    });
  }

  update(id: ProcessId, change: { works: readonly Works[] } | { stop: number }): Promise<boolean> {
    if ("stop" in change) return this.#access.write("stop", (tx) => this.#askToStop(tx, id, change.stop));
    return this.#access.write("announce", (tx) => {
      const isChanged = this.#sql.announce.run(worksText(change.works), id) > 0;
      if (isChanged) tx.wrote();
      return isChanged;
    });
  }

  #askToStop(tx: Tx, id: ProcessId, drain: number): boolean {
    const [process] = this.#sql.askToStop.all<AskedProcess>({ id, drain });
    if (process === undefined) return false;
    runSync(this.#parts.audit.record(tx, ...stopAsked(id, process, drain)));
    return true;
  }

  async unregister(id: ProcessId): Promise<boolean> {
    const forget = this.forgetting(id);
    const removed = await this.#access.write("unregister", (tx) => this.remove(tx, id));
    if (removed) forget();
    return removed;
  }

  forgetting(id: ProcessId): () => void {
    const alive = id === this.self ? undefined : this.#registered().find((process) => process.id === id)?.alive;
    return () => {
      if (alive !== undefined && alive !== "") this.#parts.alive?.forget(alive);
    };
  }

  remove(tx: Tx, id: ProcessId): boolean {
    const removed = this.#sql.remove.run({ id }) > 0;
    if (removed) tx.wrote();
    return removed;
  }

  close(): void {
    this.#parts.alive?.close();
  }

  #registered(): RegisteredProcess[] {
    return this.#sql.all.all<ProcessRow>().map(toProcess);
  }

  #life(process: RegisteredProcess, ours: string): Life {
    const lock = process.alive === "" || this.#parts.alive === null ? "unknown" : this.#parts.alive.probe(process.alive);
    return lifeOf(lock, { its: process.boot, ours });
  }
}
