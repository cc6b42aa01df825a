import type { ProcessId } from "../../core/ids.ts";
import { HoldfastError } from "../../core/errors.ts";
import {
  type AskedProcess,
  lifeOf,
  type ProcessRow,
  type RegisteredProcess,
  stopAsked,
  toProcess,
  worksText,
} from "../process-row.ts";
import type { Life, NewProcess, Works } from "../store.ts";
import type { Alive } from "../alive.ts";
import type { Acts } from "./acts.ts";
import type { Connection, DriverName, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

/** Who has the database open. */
export class Processes {
  readonly #acts: Acts;
  readonly #alive: Alive | null;
  /** Of the lock that was taken before the file was opened. */
  #token: string | null;
  #self: ProcessId | null = null;
  #boot = "";
  readonly #add: Statement;
  readonly #otherDriver: Statement;
  readonly #all: Statement;
  readonly #running: Statement;
  readonly #announce: Statement;
  readonly #askToStop: Statement;
  readonly #remove: Statement;
  readonly #isEntered: Statement;

  constructor(db: Connection, acts: Acts, alive: Alive | null, token: string | null) {
    this.#acts = acts;
    this.#alive = alive;
    this.#token = token;
    this.#add = db.prepare(
      `insert into holdfast_processes (alive, identity, driver, pid, host, boot, program, stoppable, started_at)
       values (:alive, :identity, :driver, :pid, :host, :boot, :program, :stoppable, :now) returning id`,
    );
    this.#otherDriver = db.prepare(
      "select driver from holdfast_processes where identity = :identity and driver <> :driver limit 1",
    );
    this.#all = db.prepare(
      `select id, alive, pid, host, boot, program, started_at as startedAt, works, stoppable, stop
       from holdfast_processes order by id`,
    );
    this.#announce = db.prepare("update holdfast_processes set works = ? where id = ?");
    this.#askToStop = db.prepare(
      `update holdfast_processes set stop = :drain where id = :id and stoppable = 1 and stop is null
       returning pid, host, program`,
    );
    this.#running = db.prepare("select holder, count(*) as n from holdfast_jobs where state = 'running' group by holder");
    this.#isEntered = db.prepare("select 1 from holdfast_processes where id = ?");
    // Its jobs point at it: it stays until the last of them is taken back.
    this.#remove = db.prepare(
      `delete from holdfast_processes
       where id = :id and not exists (select 1 from holdfast_jobs where state = 'running' and holder = :id)`,
    );
  }

  /** The process of this handle; null: it has none. */
  get self(): ProcessId | null {
    return this.#self;
  }

  isEntered(id: ProcessId): boolean {
    return this.#isEntered.row(id) !== undefined;
  }

  add(tx: Tx, process: NewProcess & { alive: string; driver: DriverName }): ProcessId {
    const { alive, driver, identity = "", pid, host, boot, program } = process;
    const stoppable = process.stoppable ? 1 : 0;
    const other = identity === "" ? undefined : this.#otherDriver.get<{ driver: string }>({ identity, driver });
    if (other !== undefined) throw driverDiffers(other.driver, driver);
    const { id } = this.#add.get<{ id: ProcessId }>({
      alive,
      driver,
      identity,
      pid,
      host,
      boot,
      program,
      stoppable,
      now: tx.now,
    }) as {
      id: ProcessId;
    };
    tx.wrote();
    return id;
  }

  all(): RegisteredProcess[] {
    return this.#all.all<ProcessRow>().map(toProcess);
  }

  /** Begins to prove that this process lives, for as long as it does. */
  prove(): string {
    const token = this.#token ?? this.#alive?.hold() ?? "";
    // One for each process: tests enter several.
    this.#token = null;
    return token;
  }

  /** This process is on the list. */
  entered(id: ProcessId, boot: string): void {
    this.#boot = boot;
    this.#alive?.sweep(new Set(this.all().map(({ alive }) => alive)));
    this.actAs(id);
  }

  actAs(id: ProcessId): void {
    this.#self = id;
  }

  /** The others, and whether they live. */
  probe(boot = this.#boot): { process: RegisteredProcess; life: Life }[] {
    const processes = this.all();
    this.#alive?.keepOnly(new Set(processes.map(({ alive }) => alive)));
    return processes.filter(({ id }) => id !== this.#self).map((process) => ({ process, life: this.#life(process, boot) }));
  }

  /** Called before it is struck off: what is to be done after that. */
  forgetting(id: ProcessId): () => void {
    const alive = id === this.#self ? undefined : this.all().find((process) => process.id === id)?.alive;
    return () => {
      if (alive !== undefined && alive !== "") this.#alive?.forget(alive);
    };
  }

  close(): void {
    this.#alive?.close();
  }

  announce(tx: Tx, id: ProcessId, works: readonly Works[]): void {
    if (this.#announce.run(worksText(works), id) > 0) tx.wrote();
  }

  /** Those that heed it, and were not asked before. */
  askToStop(tx: Tx, ids: readonly ProcessId[], drain: number): ProcessId[] {
    return ids.filter((id) => {
      const [process] = this.#askToStop.all<AskedProcess>({ id, drain });
      if (process === undefined) return false;
      this.#acts.add(tx, ...stopAsked(id, process, drain));
      return true;
    });
  }

  /** How many jobs each runs now. */
  running(): Map<ProcessId | null, number> {
    return new Map(this.#running.all<{ holder: ProcessId | null; n: number }>().map(({ holder, n }) => [holder, n]));
  }

  remove(tx: Tx, id: ProcessId): boolean {
    const removed = this.#remove.runNamed({ id }) > 0;
    if (removed) tx.wrote();
    return removed;
  }

  #life(process: RegisteredProcess, ours: string): Life {
    const lock = process.alive === "" || this.#alive === null ? "unknown" : this.#alive.probe(process.alive);
    return lifeOf(lock, { its: process.boot, ours });
  }
}

/** Two SQLite libraries on one file in one process drop each other's locks, and each takes the other for dead. */
function driverDiffers(used: string, asked: string): HoldfastError {
  return new HoldfastError(
    "DRIVER_DIFFERS",
    `A thread of this process has the database open with "${used}", and "${asked}" was asked for.`,
    "Use one driver for a file in all threads of a process.",
  );
}
