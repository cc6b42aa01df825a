import { HoldfastError } from "../../../../core/text/errors.ts";
import { type Change, readSegment, segmentsIn } from "./segments.ts";
import { type Journaled, journaled } from "./tables.ts";
import type { Connection } from "../../driver.ts";
import { quoted } from "../tables.ts";

/** What a database that is there can still say of its journal ends with: `unseen`, that something was done which is not in it. */
export type TailChange = Change | { seq: number; kind: "unseen"; at: null };

export interface Replay {
  /** Where the journal's files are, and whose. */
  folder: string;
  databaseId: string;
  epoch: number;
  /** What the backup holds already. */
  after: number;
  /** Commits up to this instant are made again. */
  at: number;
  /** What was not in a file yet: read in the database itself, where that could be read. */
  tail: readonly TailChange[];
  /** The last that was ever written down, where the database itself can still say so. */
  newest: number | null;
  /** The database was restored or salvaged since: what was done after the end of this journal, was done to another. */
  over: boolean;
  /** As far as it leads is good enough. */
  partly?: boolean;
}

export interface Replayed {
  /** When the last commit that is in it was made; null: none after the backup. */
  reached: number | null;
  changes: number;
}

interface End {
  seq: number;
  at: number | null;
  /** Why it is not known how it went on; null: nothing more has happened. */
  broken: string | null;
  /** When the last commit was made before it broke. */
  whole: number | null;
}

/** Before the transaction is begun: rows are put back as they were, whether or not a rule lets them in, or takes others along. */
export function withoutRules(db: Connection): void {
  db.exec("pragma foreign_keys = off");
  db.exec("pragma ignore_check_constraints = on");
}

/** Makes again what was done after a backup, commit by commit, in the transaction that is open. */
export function replay(db: Connection, replay: Replay, tell: (done: number, total: number) => void): Replayed {
  const { seq, at, broken, whole } = endOf(replay);
  if (broken !== null && !replay.partly) throw gap(broken, whole);
  const tables = new Map(journaled(db).tables.map((table) => [table.name, table]));
  const triggers = db.prepare("select name, sql from sqlite_schema where type = 'trigger'").rows() as [string, string][];
  // What they did is in the journal, too.
  for (const [name] of triggers) db.exec(`drop trigger ${quoted(name)}`);
  let done = 0;
  for (const change of changesAfter(replay)) {
    if (change === "damaged" || change.kind === "unseen") continue;
    if (change.seq > seq) break;
    const sql = statementOf(change, tables);
    if (sql === null) continue;
    db.exec(sql);
    if (++done % 1_000 === 0) tell(change.seq - replay.after, seq - replay.after);
  }
  for (const [, sql] of triggers) db.exec(sql);
  return { reached: at, changes: done };
}

/** Up to which change: the last end of a commit that is not later. What is later need not be whole. */
function endOf({ at, after, over, ...where }: Replay): End {
  const end: End = { seq: after, at: null, broken: null, whole: null };
  // Where something was done unseen, it was done after the last of these.
  let drained: Pick<End, "seq" | "at"> = { seq: after, at: null };
  let [last, damaged] = [after, false];
  const broken = (why: string): End => (at <= (end.whole ?? 0) ? end : { ...end, broken: why });
  for (const change of changesAfter({ at, after, over, ...where })) {
    if (change === "damaged") {
      damaged = true;
      continue;
    }
    if (change.seq > last + 1) return broken(`changes ${last + 1} to ${change.seq - 1} are missing`);
    [last, damaged] = [change.seq, false];
    if (change.kind === "gap" || change.kind === "unseen") {
      if (end.seq <= drained.seq) return broken(UNSEEN);
      return { ...drained, broken: UNSEEN, whole: drained.at };
    }
    if (change.at === null || (change.kind !== "commit" && change.kind !== "drained")) continue;
    if (change.kind === "drained") drained = { seq: change.seq, at: change.at };
    end.whole = Math.max(end.whole ?? 0, change.at);
    if (change.at <= at) Object.assign(end, { seq: change.seq, at: change.at });
  }
  if (where.newest !== null && last < where.newest) return broken(`changes ${last + 1} to ${where.newest} are missing`);
  if (damaged) return broken("a file of it is damaged");
  return over ? broken("the database was restored or salvaged after that") : end;
}

const UNSEEN = "tables or triggers were changed, or the journal was switched off or on";

function* changesAfter({ folder, databaseId, epoch, after, tail }: Replay): Generator<TailChange | "damaged"> {
  let last = after;
  const isNew = ({ seq, kind }: TailChange) => {
    // A drainer that died wrote some of them twice. What is said of all before it has the number of the last.
    const isSaid = kind === "drained" || kind === "unseen";
    const yes = isSaid ? seq >= last && (seq > after || kind === "unseen") : seq > last;
    if (yes) last = seq;
    return yes;
  };
  const segments = segmentsIn(folder, databaseId, epoch);
  for (const [i, { path }] of segments.entries()) {
    const next = segments[i + 1];
    if (next !== undefined && next.head.after <= after) continue;
    const { changes, damaged } = readSegment(path);
    yield* changes.filter(isNew);
    if (damaged) yield "damaged";
  }
  yield* tail.filter(isNew);
}

const VALUE = `(?:NULL|cast\\(X'[0-9A-Fa-f]*' as text\\)|-?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|'[^']*(?:''[^']*)*'|X'[0-9A-Fa-f]*')`;
const VALUES = new RegExp(`^${VALUE}(?:,${VALUE})*$`);
const SETTINGS = new RegExp(`^"[^"]*(?:""[^"]*)*"=${VALUE}(?:,"[^"]*(?:""[^"]*)*"=${VALUE})*$`);

/** Null: nothing is to be done. Nothing but values is taken from the journal's files. */
function statementOf({ kind, name, key, row }: Change, tables: ReadonlyMap<string, Journaled>): string | null {
  if (kind === "commit" || kind === "drained" || kind === "gap") return null;
  const table = tables.get(name ?? "");
  if (table === undefined) throw gap(`there is no table ${String(name)} in the backup`, null);
  const found = `(${table.key.map(quoted).join(", ")}) = (${checked(VALUES, key, kind !== "put")})`;
  switch (kind) {
    case "put":
      return `insert or replace into ${quoted(table.name)} (${table.columns.map(quoted).join(", ")}) values (${checked(VALUES, row)})`;
    case "set":
      // As it was done: what was in its way then went without a word.
      return `update or replace ${quoted(table.name)} set ${checked(SETTINGS, row)} where ${found}`;
    case "gone":
      return `delete from ${quoted(table.name)} where ${found}`;
  }
}

function checked(form: RegExp, text: string | null, needed = true): string {
  if (!needed) return "";
  if (text === null || !form.test(text)) throw gap("a change is not written as changes are", null);
  return text;
}

function gap(why: string, whole: number | null): HoldfastError {
  const until = whole === null ? "" : ` It is whole up to ${new Date(whole).toISOString()}.`;
  return new HoldfastError(
    "JOURNAL_GAP",
    `The journal does not lead from that backup to that instant: ${why}.${until} Nothing was changed.`,
    "Give an instant before that, or a backup that was made after it; or restore a backup alone, without --at.",
  );
}
