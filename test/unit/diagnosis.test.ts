import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type Inspection, diagnose } from "../../src/core/recovery/diagnosis.ts";

const DAY = 86_400_000;
const GIB = 1024 ** 3;
const NOW = 1_800_000_000_000;

/** A database that is well. */
const WELL: Inspection = {
  now: NOW,
  disk: { folder: "/data", network: null, free: 100 * GIB },
  file: { path: "/data/work.db", mode: 0o100660 },
  size: { bytes: GIB, unused: 0 },
  schema: { version: 9, known: 9 },
  settings: [
    { name: "journal_mode", value: "wal", wanted: "wal" },
    { name: "page_size", value: "4096", wanted: null },
  ],
  wal: { bytes: 1_000, copied: 0, readers: [{ pid: 7, program: null, behind: 500 }] },
  processes: [{ pid: 1, host: "here", program: "worker.ts", dead: false, running: 3 }],
  locks: [{ name: "door", holder: "anna", stale: false }],
  stuck: [],
  artifacts: { there: 3, orphaned: 0, missing: [] },
  audit: { entries: 5, fault: null },
  backups: { folder: "/backups", count: 2, newest: NOW - DAY, every: DAY },
  journal: { changes: 3, since: NOW - 900 },
  clock: { latest: NOW - 5, store: NOW, stepsBack: [] },
  reports: [],
  findings: [],
  checked: [],
  transactions: [],
};

const ILL: [what: string, seen: Partial<Inspection>, grade: string, mend: RegExp | null][] = [
  ["a network file system", { disk: { folder: "/nfs", network: "NFS", free: GIB * 9 } }, "error", /local disk/],
  [
    "a file that every user may read",
    { file: { path: "/data/a b.db", mode: 0o100644 } },
    "warning",
    /^chmod -R o= '\/data\/a b\.db' /,
  ],
  ["a full disk", { disk: { folder: "/data", network: null, free: 1_000 } }, "error", /free some space/],
  ["no room for a backup", { disk: { folder: "/data", network: null, free: GIB / 2 } }, "warning", /free some space/],
  ["a file that is mostly unused", { size: { bytes: GIB, unused: GIB * 0.9 } }, "note", /backup/],
  ["an old schema", { schema: { version: 8, known: 9 } }, "warning", /worker/],
  [
    "a setting that is not as it should be",
    { settings: [{ name: "synchronous", value: "1", wanted: "2" }] },
    "error",
    /set synchronous to 2/,
  ],
  [
    "a server without checksums",
    { settings: [{ name: "data_checksums", value: "off", wanted: "on" }] },
    "warning",
    /pg_checksums/,
  ],
  [
    "a log that a reader pins",
    { wal: { bytes: GIB / 2, copied: 0, readers: [{ pid: 7, program: "report.ts", behind: GIB / 2 }] } },
    "warning",
    /end that/,
  ],
  ["a log that is very long", { wal: { bytes: 2 * GIB, copied: 0, readers: [] } }, "error", /transactions that are open/],
  [
    "a long transaction on a server",
    { transactions: [{ pid: 7, program: "psql", since: NOW - DAY }] },
    "warning",
    /pg_terminate_backend\(7\)/,
  ],
  [
    "a dead process",
    { processes: [{ pid: 7, host: "here", program: "worker.ts", dead: true, running: 2 }] },
    "warning",
    /^holdfast recover$/,
  ],
  ["a stale lock", { locks: [{ name: "door", holder: "anna", stale: true }] }, "warning", /^holdfast unlock door$/],
  ["an expired lease", { stuck: [{ id: "a", why: "expired", by: DAY }] }, "warning", /recover --expired-for/],
  ["a job past its timeout", { stuck: [{ id: "a", why: "overdue", by: DAY }] }, "warning", /recover --expired-for/],
  ["a job that waits for nothing", { stuck: [{ id: "a", why: "forgotten", by: null }] }, "error", /jobs cancel a$/],
  ["an artifact that is missing", { artifacts: { there: 1, orphaned: 0, missing: ["ab"] } }, "error", /--with-artifacts/],
  ["artifacts that nothing refers to", { artifacts: { there: 4, orphaned: 2, missing: [] } }, "note", /artifacts sweep/],
  ["a broken audit", { audit: { entries: 5, fault: "Entry 3 was edited." } }, "damage", /audit verify/],
  ["no backup", { backups: { folder: "/backups", count: 0, newest: null, every: null } }, "warning", /^holdfast backup$/],
  [
    "an old backup",
    { backups: { folder: "/backups", count: 1, newest: NOW - 8 * DAY, every: null } },
    "warning",
    /^holdfast backup$/,
  ],
  [
    "a backup that is late by its plan",
    { backups: { folder: "/backups", count: 1, newest: NOW - 3 * DAY, every: DAY } },
    "warning",
    /backup/,
  ],
  ["a journal that no process writes to its files", { journal: { changes: 5, since: NOW - DAY } }, "warning", /-changes/],
  ["what was written in the future", { clock: { latest: NOW + DAY, store: NOW, stepsBack: [] } }, "warning", /NTP/],
  ["a server whose clock is another", { clock: { latest: NOW, store: NOW + DAY, stepsBack: [] } }, "note", /NTP/],
  ["a clock that has gone back", { clock: { latest: NOW, store: NOW, stepsBack: [{ at: NOW, by: DAY }] } }, "note", /NTP/],
  ["a report with errors", { reports: [{ state: "failed", errors: ["bad"], begunAt: NOW }] }, "error", /--acknowledge/],
  ["a recovery that is under way", { reports: [{ state: "running", errors: [], begunAt: NOW }] }, "note", null],
  ["damage", { findings: [{ severity: "damage", what: "Bad." }], checked: ["bad page"] }, "damage", /holdfast salvage/],
  ["damage that was just found", { checked: ["bad page"] }, "damage", /holdfast salvage/],
  ["commits that are missing", { findings: [{ severity: "loss", what: "Gone." }] }, "error", /recover --last/],
  ["a row in quarantine", { findings: [{ severity: "row", what: "Job 7." }] }, "warning", /quarantine/],
];

describe("a diagnosis", () => {
  test("a diagnosis of a healthy database is empty", () => {
    assert.deepEqual(diagnose(WELL), []);
  });

  for (const [what, seen, grade, mend] of ILL) {
    test(`a diagnosis of ${what} has a severity and a remedy`, () => {
      const found = diagnose({ ...WELL, ...seen });
      assert.deepEqual(
        found.map((one) => one.grade),
        [grade],
        JSON.stringify(found),
      );
      if (mend === null) assert.equal(found[0]?.mend, null);
      else assert.match(found[0]?.mend ?? "", mend);
    });
  }

  test("a diagnosis names the process that pins the WAL", () => {
    const wal = {
      bytes: GIB,
      copied: 0,
      readers: [
        { pid: 7, program: "report.ts", behind: GIB },
        { pid: 8, program: null, behind: 1 },
      ],
    };
    assert.match(diagnose({ ...WELL, wal })[0]?.message ?? "", /pid 7 \(report\.ts\), pid 8 reads an earlier state/);
  });

  test("a diagnosis starts with the worst finding, and counts those too many to name", () => {
    const locks = Array.from({ length: 9 }, (_, i) => ({ name: `lock ${i}`, holder: "anna", stale: true }));
    const found = diagnose({ ...WELL, locks, checked: ["bad page"], artifacts: { there: 4, orphaned: 2, missing: [] } });
    assert.deepEqual(
      found.map(({ grade }) => grade),
      ["damage", "warning", "warning", "warning", "warning", "note"],
    );
    assert.match(found[4]?.message ?? "", /6 more/);
  });

  test("a diagnosis of a database that could not be opened invents nothing", () => {
    const unseen: Inspection = {
      ...WELL,
      size: null,
      schema: null,
      settings: [],
      wal: null,
      artifacts: null,
      audit: null,
      backups: null,
      clock: null,
    };
    assert.deepEqual(diagnose(unseen), []);
  });
});
