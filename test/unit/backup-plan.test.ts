import assert from "node:assert/strict";
import { suite, test } from "node:test";
import * as fc from "fast-check";
import { checkBackups, backupDueIn, type KnownBackup, backupsToRemove } from "../../src/core/recovery/backup-plan.ts";
import { code, unchecked } from "../runtime/parts.ts";

const backup = fc.record({
  file: fc.uuid(),
  takenAt: fc.integer({ min: 0, max: 1_000 }),
  epoch: fc.integer({ min: 0, max: 2 }),
  commits: fc.integer({ min: 0, max: 50 }),
  scheduled: fc.boolean(),
  whole: fc.boolean(),
});

function whole(all: readonly KnownBackup[]): KnownBackup[] {
  return all.filter((one) => one.scheduled && one.whole);
}

function made(takenAt: number, given: Partial<KnownBackup> = {}): KnownBackup {
  return { file: "a", takenAt, epoch: 0, commits: takenAt, scheduled: true, whole: true, ...given };
}

/** Epochs and commits only rise. */
function age({ epoch, commits, takenAt }: KnownBackup): number {
  return epoch * 1e6 + commits * 1e4 + takenAt;
}

suite("which backups need not be kept", () => {
  test("backups made by an operator and the newest valid ones are kept, and no others", () => {
    fc.assert(
      fc.property(fc.array(backup), fc.integer({ min: 1, max: 5 }), (backups, keep) => {
        const gone = new Set(backupsToRemove({ keep }, backups));
        const stay = backups.filter(({ file }) => !gone.has(file));
        assert.ok(backups.every(({ file, scheduled }) => scheduled || !gone.has(file)));
        assert.equal(whole(stay).length, Math.min(keep, whole(backups).length));
        const oldest = Math.min(...whole(stay).map(age));
        assert.ok(whole(backups).every((one) => !gone.has(one.file) || age(one) <= oldest));
      }),
    );
  });

  test("the newest backup stays, even if a fast clock dated older ones later", () => {
    const ahead = [made(9_000, { file: "1", commits: 1 }), made(9_100, { file: "2", commits: 2 })];
    assert.deepEqual(backupsToRemove({ keep: 2 }, [...ahead, made(5_000, { file: "3", commits: 3 })]), ["1"]);
  });
});

suite("when the next one is due", () => {
  test("the next backup is due now without a valid one, else an interval after the newest", () => {
    assert.equal(backupDueIn({ every: 100 }, [], 5_000), 0);
    assert.equal(backupDueIn({ every: 100 }, [made(4_990, { whole: false }), made(4_990, { scheduled: false })], 5_000), 0);
    assert.equal(backupDueIn({ every: 100 }, [made(4_000), made(4_970)], 5_000), 70);
    assert.equal(backupDueIn({ every: 100 }, [made(4_000)], 5_000), 0);
  });

  test("a backup dated in the future delays the next one by at most an interval", () => {
    assert.equal(backupDueIn({ every: 100 }, [made(5_050)], 5_000), 100);
    assert.equal(backupDueIn({ every: 100 }, [made(9_000)], 5_000), 0);
    const since = made(4_970, { commits: 9_001 });
    assert.equal(backupDueIn({ every: 100 }, [made(9_000), since], 5_000), 70, "the newest is the one with the most in it");
  });
});

test("an invalid plan is rejected at once", () => {
  assert.equal(checkBackups(undefined, "a"), null);
  assert.equal(checkBackups({ beforeMigration: false }, "a"), null);
  assert.deepEqual(checkBackups({}, "beside"), { folder: "beside", every: 86_400_000, keep: 7, artifacts: false });
  assert.throws(() => checkBackups({ keep: 0 }, "a"), code("NUMBER_INVALID"));
  assert.throws(() => checkBackups({ every: 5 }, "a"), code("DURATION_INVALID"));
  assert.throws(() => checkBackups({ every: "1h" }, null), code("OPTION_INVALID"));
  assert.throws(() => checkBackups(unchecked({ often: true }), "a"), code("OPTION_INVALID"));
});
