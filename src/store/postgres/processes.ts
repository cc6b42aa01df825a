import { randomBytes, randomUUID } from "node:crypto";
import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import type { ProcessId } from "../../core/text/ids.ts";
import { Alive } from "../alive.ts";
import {
  type Life,
  lifeOf,
  type NewProcess,
  type ProcessStore,
  type ProcessView,
  type RegisteredProcess,
  stopAsked,
  toProcess,
  type Works,
  worksText,
} from "../processes.ts";
import type { Audit } from "../sql/audit.ts";
import { runAsync } from "../sql/script.ts";
import { networkFileSystem } from "../sqlite/open.ts";
import { listOf, type Rows } from "./connection/driver.ts";
import { codeOf, NO_WRITES } from "./connection/faults.ts";
import type { ServerTime } from "./connection/server-time.ts";
import type { Session } from "./connection/session.ts";
import type { Access, Tx } from "./transactions/transaction.ts";

/** A process whose life nothing proves says this often that it is there; in milliseconds, like what follows. */
const SAY = 20_000;
/** A process that was seen within this time is not removed by others. */
const HEARD = 60_000;
/** Who lives elsewhere is asked this often: nothing follows from it at once. */
const ELSEWHERE = 2_000;

type Row = [
  id: ProcessId,
  place: string,
  alive: string,
  pid: number,
  host: string,
  boot: string,
  program: string,
  startedAt: number,
  works: string | null,
  stoppable: boolean,
  stop: number | null,
];

type Placed = RegisteredProcess & { place: string };

/** The row of this process, written again if another process has removed it. */
interface Entry {
  process: NewProcess;
  alive: string;
  startedAt: number;
  works: readonly Works[];
}

interface Parts {
  databaseId: string;
  /** Connections are not one's own, so none can hold a lock. */
  pooled: boolean;
  audit: Audit;
  time: ServerTime;
}

/**
 * The processes that have the database open. On one host lock files prove that a process is alive, or dead. Of a process
 * elsewhere only life can be proven: by the connection that it writes over, which its row names. A connection that is
 * gone proves nothing, since connections are lost.
 */
export class Processes implements ProcessStore {
  readonly #access: Access;
  readonly #sql: Record<
    "add" | "again" | "all" | "connected" | "setBackend" | "running" | "announce" | "askToStop" | "remove",
    string
  >;
  readonly #audit: Audit;
  readonly #time: ServerTime;
  readonly #pooled: boolean;
  readonly #place: Place | null;
  readonly #alive: Alive | null;
  #self: ProcessId | null = null;
  #entry: Entry | null = null;
  #boot = "";
  /** Whether this process's row names the connection that it writes over. */
  #isBackendKnown = false;
  #saidAt = Number.NEGATIVE_INFINITY;
  #connected: { ids: ReadonlySet<ProcessId>; at: number } = { ids: new Set(), at: Number.NEGATIVE_INFINITY };

  constructor(s: string, { databaseId, pooled, audit, time }: Parts, access: Access) {
    this.#access = access;
    this.#audit = audit;
    this.#time = time;
    this.#pooled = pooled;
    this.#place = findPlace(databaseId);
    this.#alive = this.#place === null ? null : new Alive(this.#place.folder, "node:sqlite");
    const columns = "place, alive, identity, pid, host, boot, program, stoppable, works, started_at, seen_at";
    this.#sql = {
      add: `
        with clock as materialized (select ${s}.clock($1) as now)
        insert into ${s}.processes (${columns})
        select $2, $3, $4, $5::integer, $6, $7, $8, $9::boolean, $10, now, now from clock returning id, started_at`,
      again: `
        with clock as materialized (select ${s}.clock($1) as now)
        insert into ${s}.processes (id, ${columns}) overriding system value
        select $11::bigint, $2, $3, $4, $5::integer, $6, $7, $8, $9::boolean, $10, $12::bigint, now from clock
        on conflict (id) do update set seen_at = excluded.seen_at`,
      all: `
        select id, place, alive, pid, host, boot, program, started_at, works, stoppable, stop from ${s}.processes order by id`,
      // A role that may not look at another role's connections sees no `backend_start` of theirs.
      connected: `
        select process.id from ${s}.processes as process
        join pg_stat_activity as activity on activity.pid = process.backend and activity.usesysid = process.backend_role
        where activity.datname = current_database() and coalesce(activity.backend_start, backend_since) = backend_since`,
      setBackend: `
        update ${s}.processes
        set (backend, backend_role, backend_since) =
          (select pid, usesysid, backend_start from pg_stat_activity where pid = pg_backend_pid())
        where id = $1 returning id`,
      running: `select holder, sum(at_work)::bigint from ${s}.claims group by holder`,
      announce: `update ${s}.processes set works = $2 where id = $1 returning id`,
      askToStop: `
        update ${s}.processes set stop = $2 where id = any($1::bigint[]) and stoppable and stop is null
        returning id, pid, host, program`,
      // Its jobs point at it: it stays until the last of them is taken back.
      remove: `
        delete from ${s}.processes
        where id = $1 and (id = $2::bigint or (place = $3 and place <> '') or seen_at <= ${s}.clock($4) - ${HEARD})
          and not exists (select 1 from ${s}.claims where holder = $1)
        returning alive`,
    };
  }

  async register(process: NewProcess): Promise<ProcessId> {
    // From here on it is proven that this process lives, for as long as it does.
    const alive = this.#alive?.hold() ?? "";
    const id = await this.#access.write("register", (tx) => this.#add(tx, process, alive));
    await this.#clearUp();
    return id;
  }

  async #add(tx: Tx, process: NewProcess, alive: string): Promise<ProcessId> {
    const [row] = await tx.rows<[ProcessId, number]>(this.#sql.add, tx.at, ...this.#written({ process, alive, works: [] }));
    const [id, startedAt] = row as [ProcessId, number];
    if (!this.#pooled) await this.#setBackendIn(tx, id);
    tx.onCommit(() => {
      this.#entry = { process, alive, startedAt, works: [] };
      this.#boot = process.boot;
      this.#self = id;
    });
    tx.wrote();
    return id;
  }

  /** What those before this process have left here. */
  async #clearUp(): Promise<void> {
    if (this.#alive === null || this.#place === null) return;
    sweepOld(this.#place, Date.now());
    this.#alive.sweep(new Set((await this.#registered()).map(({ alive }) => alive)));
  }

  /** The process of this handle; null: it has none. */
  get self(): ProcessId | null {
    return this.#self;
  }

  actAs(id: ProcessId): void {
    this.#self = id;
  }

  /** The connection that writes is another than before. */
  async connected(session: Session): Promise<void> {
    this.#isBackendKnown = false;
    if (this.#entry === null || this.#pooled) return;
    try {
      await this.#setBackend((text, ...values) => session.rows(text, values), this.#self as ProcessId);
    } catch (error) {
      // A standby takes no writes; it is asked again after the next one.
      if (codeOf(error) !== NO_WRITES) throw error;
    }
  }

  async probe(boot = this.#boot): Promise<{ process: ProcessView; life: Life }[]> {
    const [{ others, unheard }] = await Promise.all([this.#probe(boot), this.#time.keep(this.#access.read)]);
    if (unheard) await this.#access.write("register", (tx) => this.#sayAgain(tx));
    return others;
  }

  /** The others, and whether they live. `unheard`: this process has to say again that it is there. */
  async #probe(ours: string): Promise<{ others: { process: ProcessView; life: Life }[]; unheard: boolean }> {
    const processes = await this.#registered();
    this.#alive?.keepOnly(new Set(processes.map(({ alive }) => alive)));
    const others = processes
      .filter(({ id }) => id !== this.#self)
      .map(
        (process) =>
          ({ process, here: this.#isHere(process) ? (this.#alive as Alive).probe(process.alive) : "unknown" }) as const,
      );
    const isFresh = performance.now() - this.#connected.at < ELSEWHERE && others.every(({ here }) => here !== "dead");
    if (!isFresh && others.some(({ here }) => here !== "alive")) await this.#readConnected();
    return {
      others: others.map(({ process, here }) => {
        // A lock file that is free may be a copy, in the image of a disk. Only both together prove that the process is dead.
        const proof = here !== "alive" && this.#connected.ids.has(process.id) ? "alive" : here;
        return { process, life: lifeOf(proof, { its: process.boot, ours }) };
      }),
      unheard: this.#isUnheard(processes),
    };
  }

  /** Written again, if another process has removed it for want of signs of life. */
  async #sayAgain(tx: Tx): Promise<void> {
    const entry = this.#entry;
    if (entry === null) return;
    const self = this.#self as ProcessId;
    await tx.rows(this.#sql.again, tx.at, ...this.#written(entry), self, entry.startedAt);
    if (!this.#pooled) await this.#setBackendIn(tx, self);
  }

  all(): Promise<ProcessView[]> {
    return this.#registered();
  }

  /** How many jobs each runs now. */
  async running(): Promise<Map<ProcessId | null, number>> {
    return new Map(await this.#access.read<[ProcessId | null, number]>(this.#sql.running));
  }

  announce(id: ProcessId, works: readonly Works[]): Promise<void> {
    return this.#access.write("announce", async (tx) => {
      if (id === this.#self && this.#entry !== null) this.#entry.works = works;
      if ((await tx.rows(this.#sql.announce, id, worksText(works))).length > 0) tx.wrote();
      else if (id === this.#self) await this.#sayAgain(tx);
    });
  }

  /** Those that heed it, and were not asked before. */
  askToStop(ids: readonly ProcessId[], drain: number): Promise<ProcessId[]> {
    return this.#access.write("stop", async (tx) => {
      const asked = await tx.rows<[ProcessId, number, string, string]>(this.#sql.askToStop, listOf(ids), drain);
      for (const [id, pid, host, program] of asked)
        await runAsync(this.#audit.record(tx, ...stopAsked(id, { pid, host, program }, drain)));
      const there = new Set(asked.map(([id]) => id));
      return ids.filter((id) => there.has(id));
    });
  }

  unregister(id: ProcessId): Promise<boolean> {
    return this.#access.write("unregister", (tx) => this.remove(tx, id));
  }

  /** Removes it, in a transaction of the caller. */
  async remove(tx: Tx, id: ProcessId): Promise<boolean> {
    const [row] = await tx.rows<[string]>(this.#sql.remove, id, this.#self, this.#place?.id ?? "", tx.at);
    if (row === undefined) return false;
    tx.wrote();
    tx.onCommit(() => {
      if (id === this.#self) this.#entry = null;
      else if (row[0] !== "") this.#alive?.forget(row[0]);
    });
    return true;
  }

  close(): void {
    this.#alive?.close();
    try {
      if (this.#place !== null) rmdirSync(this.#place.folder);
    } catch {
      // Another process is there, or none ever was.
    }
  }

  async #registered(): Promise<Placed[]> {
    return (await this.#access.read<Row>(this.#sql.all)).map(
      ([id, place, alive, pid, host, boot, program, startedAt, works, stoppable, stop]) =>
        Object.assign(toProcess({ id, alive, pid, host, boot, program, startedAt, works, stoppable, stop }), { place }),
    );
  }

  #written({ process, alive, works }: Omit<Entry, "startedAt">) {
    const { identity = "", pid, host, boot, program, stoppable = false } = process;
    return [this.#place?.id ?? "", alive, identity, pid, host, boot, program, stoppable, worksText(works)] as const;
  }

  #isHere({ place, alive }: Placed): boolean {
    return this.#place !== null && place === this.#place.id && alive !== "";
  }

  #isUnheard(processes: readonly Placed[]): boolean {
    if (this.#entry === null) return false;
    const now = performance.now();
    const due = !this.#isBackendKnown && now - this.#saidAt >= SAY;
    if (!due && processes.some(({ id }) => id === this.#self)) return false;
    this.#saidAt = now;
    return true;
  }

  /** Names the connection of these rows in the process's row. */
  async #setBackend(rows: Rows, id: ProcessId): Promise<void> {
    this.#isBackendKnown = (await rows(this.#sql.setBackend, id)).length > 0;
  }

  #setBackendIn(tx: Tx, id: ProcessId): Promise<void> {
    tx.onUndo(() => (this.#isBackendKnown = false));
    return this.#setBackend(tx.rows, id);
  }

  async #readConnected(): Promise<void> {
    const connected = await this.#access.read<[ProcessId]>(this.#sql.connected);
    this.#connected = { ids: new Set(connected.map(([id]) => id)), at: performance.now() };
  }
}

/** Where processes of one host and one user prove their lives to each other. */
export interface Place {
  /** No other folder has it, wherever it is and whatever it is called. */
  id: string;
  /** For the files of those who have this database open. */
  folder: string;
}

/** What is in the first outlives a reboot, so that a process can tell that there was one. */
const BASES = process.platform === "win32" ? [tmpdir()] : ["/var/tmp", tmpdir()];

/**
 * A host's name does not say which host it is: containers share names, and paths, but not what is under them. So the
 * folder itself holds a name that was drawn for it. Another user's files could not be locked, so each user has a
 * folder, and is to the others like a user on another host. Null where there is no folder that can be trusted.
 */
export function findPlace(databaseId: string, bases: readonly string[] = basesOf(process.env)): Place | null {
  for (const base of bases) {
    const own = join(base, `holdfast-${process.getuid?.() ?? "here"}`);
    try {
      if (!existsSync(own)) mkdirSync(own, { mode: 0o700 });
    } catch {
      // Another process made it just now, or none may.
    }
    try {
      if (isOurs(own) && networkFileSystem(own) === null) return { id: identityOf(own), folder: join(own, databaseId) };
    } catch {
      // It is not there, or cannot be written.
    }
  }
  return null;
}

/** Who says where it is means there and nowhere else: two that look in different places would be strangers. */
function basesOf({ HOLDFAST_ALIVE: given }: NodeJS.ProcessEnv): readonly string[] {
  return given ? [resolve(given)] : BASES;
}

/** Folders of databases that no process has opened or closed for so long are removed, in milliseconds. */
const FORGOTTEN = 30 * 86_400_000;

/** Removes folders of other databases, whose last processes died: no other process cleans up after them. */
export function sweepOld(place: Place, now: number): void {
  const here = dirname(place.folder);
  for (const name of readdirSync(here)) {
    try {
      if (name !== basename(place.folder) && isForgotten(join(here, name), now)) rmSync(join(here, name), { recursive: true });
    } catch {
      // Another process removes it at this instant.
    }
  }
}

function isForgotten(folder: string, now: number): boolean {
  const stat = statSync(folder);
  if (!stat.isDirectory() || now - stat.mtimeMs < FORGOTTEN) return false;
  const alive = new Alive(folder, "node:sqlite");
  const tokens = readdirSync(folder).flatMap((file) => (file.endsWith(".lock") ? [file.slice(0, -".lock".length)] : []));
  const isLeft = tokens.every((token) => alive.probe(token) === "dead");
  alive.close();
  return isLeft;
}

/** Every user can make a folder of that name there. A user who can write into it could make processes look dead. */
function isOurs(folder: string): boolean {
  const stat = lstatSync(folder);
  if (process.getuid === undefined) return stat.isDirectory();
  return stat.isDirectory() && stat.uid === process.getuid() && (stat.mode & 0o022) === 0;
}

/** Of two who come first, one's is taken: a link is made whole, or not at all. */
function identityOf(folder: string): string {
  const file = join(folder, "place");
  if (!existsSync(file)) {
    const draft = join(folder, `place-${randomBytes(8).toString("hex")}`);
    const handle = openSync(draft, "wx", 0o600);
    try {
      writeSync(handle, randomUUID());
      fsyncSync(handle);
    } finally {
      closeSync(handle);
    }
    try {
      linkSync(draft, file);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    } finally {
      rmSync(draft, { force: true });
    }
  }
  const id = readFileSync(file, "utf8");
  if (!/^[0-9a-f-]{36}$/.test(id)) throw new Error(`${file} is not what it was.`);
  return id;
}
