import { dirname, join } from "node:path";
import { HoldfastError } from "../../../core/errors.ts";
import { copyFileSynced } from "../backup/files.ts";
import { type Replay, replay, withoutRules } from "../changes/replay.ts";
import type { Change } from "../changes/segments.ts";
import { connect, type DriverName } from "../driver.ts";
import type { Definition } from "./definitions.ts";
import type { Pages } from "./pages.ts";
import { readTable } from "./trees.ts";

/** What a damaged database knows of its journal of changes. */
export interface FoundJournal {
  /** Null: that cannot be read. */
  active: boolean | null;
  /** What was not in a file yet. */
  tail: Change[];
}

const KINDS = new Set<unknown>(["put", "set", "gone", "commit", "gap"] satisfies Change["kind"][]);

export function readJournal(pages: Pages, definitions: readonly Definition[]): FoundJournal {
  const rootOf = (table: string) => definitions.find(({ name, type }) => type === "table" && name === table)?.root;
  const found: FoundJournal = { active: null, tail: [] };
  const state = rootOf("holdfast_journal");
  if (state === undefined) return { ...found, active: false };
  readTable(
    pages,
    state,
    ({ values }) => (found.active = values[1] === 1n),
    () => {},
  );
  const changes = rootOf("holdfast_changes");
  if (changes === undefined) return found;
  readTable(
    pages,
    changes,
    ({ rowid, values: [, kind, name, key, row, at] }) => {
      if (!KINDS.has(kind)) return;
      const [seq, time] = [Number(rowid), typeof at === "bigint" ? Number(at) : null];
      found.tail.push({ seq, kind: kind as Change["kind"], name: textOf(name), key: textOf(key), row: textOf(row), at: time });
    },
    () => {},
  );
  return found;
}

function textOf(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

/** The backup, and what was done after it as far as the journal leads: a copy of it, beside the new database. */
export function goOn(
  driver: DriverName,
  backup: string,
  beside: string,
  journal: Omit<Replay, "at" | "newest" | "over" | "partly">,
): { path: string; reached: number | null } {
  const path = join(dirname(beside), "source");
  copyFileSynced(backup, path);
  const db = connect(driver, path, { busyTimeout: 0, mustExist: true });
  try {
    withoutRules(db);
    db.exec("begin immediate");
    const { reached } = replay(
      db,
      { ...journal, at: Number.MAX_SAFE_INTEGER, newest: null, over: false, partly: true },
      () => {},
    );
    db.exec("commit");
    return { path, reached };
  } catch (error) {
    // A change that is not written as changes are: the backup alone has to do.
    if (error instanceof HoldfastError && error.code === "JOURNAL_GAP") return { path: backup, reached: null };
    throw error;
  } finally {
    db.close();
  }
}
