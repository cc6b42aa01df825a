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
  lifeOf,
  type NewProcess,
  type ProbedProcesses,
  type RegisteredProcess,
  stopAsked,
  toProcess,
  type Works,
  worksText,
} from "../processes.ts";
import type { Audit } from "../sql/audit.ts";
import { runAsync } from "../sql/script.ts";
import { networkFileSystem } from "../sqlite/open.ts";
import type { Rows } from "./connection/driver.ts";
import { codeOf, NO_WRITES } from "./connection/faults.ts";
import { named } from "./scripts.ts";
import type { ServerTime } from "./connection/server-state.ts";
import type { Session } from "./connection/session.ts";
import type { Access, Tx } from "./transactions/transaction.ts";
import type { ProcessStore } from "../store.ts";

/** Interval in milliseconds of the heartbeat of a process that neither a lock file nor a connection proves alive. */
const HEARTBEAT_MS = 20_000;
/** Other processes do not remove a process that was seen within this time, in milliseconds. */
const SEEN_RECENTLY_MS = 60_000;
const CONNECTIONS_READ_MS = 2_000;

type Placed = RegisteredProcess & { place: string };

interface Entry {
  process: NewProcess;
  alive: string;
  startedAt: number;
  works: readonly Works[];
}

interface Parts {
  databaseId: string;
  pooled: boolean;
  audit: Audit;
  time: ServerTime;
}

/** A lock file proves life or death on one host. On another only the connection in the process's row proves life. */
export class Processes implements ProcessStore {
  readonly #access: Access;
  readonly #sql: Record<"enter" | "all" | "connected" | "setBackend" | "announce" | "askToStop" | "remove", string>;
  readonly #parts: Parts;
  readonly #place: Place | null;
  readonly #alive: Alive | null;
  self: ProcessId | null = null;
  #entry: Entry | null = null;
  #boot = "";
  #isBackendKnown = false;
  #beatAt = Number.NEGATIVE_INFINITY;
  #connected: { ids: ReadonlySet<ProcessId>; at: number } = { ids: new Set(), at: Number.NEGATIVE_INFINITY };

  constructor(s: string, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#place = findPlace(parts.databaseId);
    this.#alive = this.#place === null ? null : new Alive(this.#place.folder, "node:sqlite");
    const columns = "place, alive, identity, pid, host, boot, program, stoppable, works, started_at, seen_at";
    this.#sql = {
      // $11 and $12 are its id and start, if it is entered again.
      enter: `
        with clock as materialized (select ${s}.clock($1) as now)
        insert into ${s}.processes (id, ${columns}) overriding system value
        select coalesce($11::bigint, nextval('${s}.processes_id_seq')), $2, $3, $4, $5::integer, $6, $7, $8, $9::boolean, $10,
          coalesce($12::bigint, now), now from clock
        on conflict (id) do update set seen_at = excluded.seen_at returning id, started_at`,
      all: `
        select id, place, alive, pid, host, boot, program, started_at as "startedAt", works, stoppable, stop from ${s}.processes order by id`,
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
      announce: `update ${s}.processes set works = $2 where id = $1 returning id`,
      askToStop: `
        update ${s}.processes set stop = $2 where id = $1 and stoppable and stop is null returning pid, host, program`,
      remove: `
        delete from ${s}.processes
        where id = $1 and (id = $2::bigint or (place = $3 and place <> '') or seen_at <= ${s}.clock($4) - ${SEEN_RECENTLY_MS})
          and not exists (select 1 from ${s}.claims where holder = $1)
        returning alive`,
    };
  }

  async register(process: NewProcess): Promise<ProcessId> {
    const alive = this.#alive?.hold() ?? "";
    const id = await this.#access.write("register", (tx) => this.#add(tx, process, alive));
    await this.#clearUp();
    return id;
  }

  async #add(tx: Tx, process: NewProcess, alive: string): Promise<ProcessId> {
    const [row] = await tx.rows<[ProcessId, number]>(
      this.#sql.enter,
      tx.at,
      ...this.#written({ process, alive, works: [] }),
      null,
      null,
    );
    const [id, startedAt] = row as [ProcessId, number];
    if (!this.#parts.pooled) await this.#setBackendIn(tx, id);
    tx.onCommit(() => {
      this.#entry = { process, alive, startedAt, works: [] };
      this.#boot = process.boot;
      this.self = id;
    });
    tx.wrote();
    return id;
  }

  async #clearUp(): Promise<void> {
    if (this.#alive === null || this.#place === null) return;
    sweepOld(this.#place, Date.now());
    this.#alive.sweep(new Set((await this.#registered()).map(({ alive }) => alive)));
  }

  async connected(session: Session): Promise<void> {
    this.#isBackendKnown = false;
    if (this.#entry === null || this.#parts.pooled) return;
    try {
      await this.#setBackend((text, ...values) => session.rows(text, values), this.self as ProcessId);
    } catch (error) {
      if (codeOf(error) !== NO_WRITES) throw error;
    }
  }

  async probe(boot = this.#boot): Promise<ProbedProcesses> {
    const [{ needsHeartbeat, ...probed }] = await Promise.all([this.#probe(boot), this.#parts.time.keep(this.#access.read)]);
    if (needsHeartbeat) await this.#access.write("register", (tx) => this.#beat(tx));
    return probed;
  }

  async #probe(ours: string): Promise<ProbedProcesses & { needsHeartbeat: boolean }> {
    const processes = await this.#registered();
    this.#alive?.keepOnly(new Set(processes.map(({ alive }) => alive)));
    const others = processes
      .filter(({ id }) => id !== this.self)
      .map(
        (process) =>
          ({ process, here: this.#isHere(process) ? (this.#alive as Alive).probe(process.alive) : "unknown" }) as const,
      );
    const isFresh = performance.now() - this.#connected.at < CONNECTIONS_READ_MS && others.every(({ here }) => here !== "dead");
    if (!isFresh && others.some(({ here }) => here !== "alive")) await this.#readConnected();
    return {
      self: processes.find(({ id }) => id === this.self) ?? null,
      others: others.map(({ process, here }) => {
        // A free lock file may be a copy in the image of a disk. Only a free file and a lost connection prove a death.
        const proof = here !== "alive" && this.#connected.ids.has(process.id) ? "alive" : here;
        return { process, life: lifeOf(proof, { its: process.boot, ours }) };
      }),
      needsHeartbeat: this.#needsHeartbeat(processes),
    };
  }

  async #beat(tx: Tx): Promise<void> {
    const entry = this.#entry;
    if (entry === null) return;
    const self = this.self as ProcessId;
    await tx.rows(this.#sql.enter, tx.at, ...this.#written(entry), self, entry.startedAt);
    if (!this.#parts.pooled) await this.#setBackendIn(tx, self);
  }

  update(id: ProcessId, change: { works: readonly Works[] } | { stop: number }): Promise<boolean> {
    if ("stop" in change) return this.#access.write("stop", (tx) => this.#askToStop(tx, id, change.stop));
    return this.#access.write("announce", (tx) => this.#announce(tx, id, change.works));
  }

  async #announce(tx: Tx, id: ProcessId, works: readonly Works[]): Promise<boolean> {
    if (id === this.self && this.#entry !== null) this.#entry.works = works;
    const isChanged = (await tx.rows(this.#sql.announce, id, worksText(works))).length > 0;
    if (isChanged) tx.wrote();
    else if (id === this.self) await this.#beat(tx);
    return isChanged;
  }

  async #askToStop(tx: Tx, id: ProcessId, drain: number): Promise<boolean> {
    const [asked] = await tx.rows<[number, string, string]>(this.#sql.askToStop, id, drain);
    if (asked === undefined) return false;
    const [pid, host, program] = asked;
    await runAsync(this.#parts.audit.record(tx, ...stopAsked(id, { pid, host, program }, drain)));
    return true;
  }

  unregister(id: ProcessId): Promise<boolean> {
    return this.#access.write("unregister", (tx) => this.remove(tx, id));
  }

  async remove(tx: Tx, id: ProcessId): Promise<boolean> {
    const [row] = await tx.rows<[string]>(this.#sql.remove, id, this.self, this.#place?.id ?? "", tx.at);
    if (row === undefined) return false;
    tx.wrote();
    tx.onCommit(() => {
      if (id === this.self) this.#entry = null;
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
    type Row = Parameters<typeof toProcess>[0] & { place: string };
    const rows = named<Row>(await this.#access.read(this.#sql.all));
    return rows.map(({ place, ...row }) => Object.assign(toProcess(row), { place }));
  }

  #written({ process, alive, works }: Omit<Entry, "startedAt">) {
    const { identity = "", pid, host, boot, program, stoppable = false } = process;
    return [this.#place?.id ?? "", alive, identity, pid, host, boot, program, stoppable, worksText(works)] as const;
  }

  #isHere({ place, alive }: Placed): boolean {
    return this.#place !== null && place === this.#place.id && alive !== "";
  }

  #needsHeartbeat(processes: readonly Placed[]): boolean {
    if (this.#entry === null) return false;
    const now = performance.now();
    const due = !this.#isBackendKnown && now - this.#beatAt >= HEARTBEAT_MS;
    if (!due && processes.some(({ id }) => id === this.self)) return false;
    this.#beatAt = now;
    return true;
  }

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

/** A folder in which processes of one host and one user prove that they are alive. */
export interface Place {
  id: string;
  folder: string;
}

/** Folders for places. The first survives a reboot, so that a process can tell that there was one. */
const BASES = process.platform === "win32" ? [tmpdir()] : ["/var/tmp", tmpdir()];

/** Finds this user's place. Its id is its own: containers share host names and paths, not files. Null if none can be trusted. */
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

function basesOf({ HOLDFAST_ALIVE: given }: NodeJS.ProcessEnv): readonly string[] {
  return given ? [resolve(given)] : BASES;
}

const FORGOTTEN_MS = 30 * 86_400_000;

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
  if (!stat.isDirectory() || now - stat.mtimeMs < FORGOTTEN_MS) return false;
  using alive = new Alive(folder, "node:sqlite");
  return alive.tokens().every((token) => alive.probe(token) === "dead");
}

/** Whether only this user writes into the folder. Any user could create it, and make processes look dead. */
function isOurs(folder: string): boolean {
  const stat = lstatSync(folder);
  if (process.getuid === undefined) return stat.isDirectory();
  return stat.isDirectory() && stat.uid === process.getuid() && (stat.mode & 0o022) === 0;
}

/** Returns the place's id. If two processes come first, one wins, because a link is created whole or not at all. */
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
