import { dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, withoutRules } from "../changes/replay.ts";
import type { Change } from "../changes/segments.ts";
import { connect, type DriverName } from "../../driver.ts";
import { copyFileSynced } from "../backup/files.ts";
import { readDamaged } from "./damaged-copy.ts";

/** What a damaged database knows of its journal of changes. */
export interface FoundJournal {
  /** Null: that cannot be read. */
  active: boolean | null;
  /** What was not in a file yet. */
  tail: Change[];
}

export function readJournal(driver: DriverName, damaged: string): FoundJournal {
  const state = readDamaged(driver, damaged, (db) => ({ active: stateOf(db)?.active ?? false }));
  const tail = state?.active
    ? readDamaged(driver, damaged, (db) =>
        db.prepare("select seq, kind, name, key, row, at from holdfast_changes order by seq").all<Change>(),
      )
    : [];
  return { active: state?.active ?? null, tail: tail ?? [] };
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
