import assert from "node:assert/strict";
import { copyFileSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, test } from "node:test";
import { items, job, open, pipeline } from "../../src/index.ts";
import { salvageWhole } from "../../src/operator/restore.ts";
import { offsetOf, PAGE, place, scribble, silent } from "./place.ts";
import { LONG } from "../selection.ts";

const note = job<{ n: number }>({ name: "note", run: () => {} });
const limited = job<{ tenant: string }>({
  name: "limited",
  // With a rate, so that jobs beyond the free slot of an idle key are parked.
  limit: { key: ({ tenant }) => tenant, concurrency: 1, rate: "100/s" },
  run: () => {},
});
const daily = job<object>({ name: "daily", queue: { name: "daily", events: true, keep: { succeeded: "1d" } }, run: () => {} });
const words = items(() => Array.from({ length: 40 }, (_, i) => ({ id: `word ${i}` })), { id: ({ id }) => id });
const lengths = pipeline("lengths")
  .source(words)
  .stage("measure", {}, ({ input }) => ({ length: input.id.length, text: "y".repeat(200) }))
  .stage("double", { retry: { attempts: 1 } }, ({ input }) => {
    if (input.length > 6) throw new Error("too long");
    return input.length * 2;
  });

const folder = mkdtempSync(join(tmpdir(), "holdfast-salvage-"));
const path = join(folder, "work.db");
const backup = join(folder, "backup.db");
after(() => rmSync(folder, { recursive: true, force: true }));

/** Something of everything: limits, dependencies, schedules, events, a build that ended and one that has not. */
before(async () => {
  const hf = await open(path, { log: silent });
  await hf.enqueueMany(
    note,
    Array.from({ length: 200 }, (_, n) => ({ n })),
    (_, i) => ({ id: `note-${i}`, key: `key-${i}` }),
  );
  await hf.enqueueMany(
    limited,
    Array.from({ length: 60 }, (_, i) => ({ tenant: `t${i % 3}` })),
  );
  for (let i = 0; i < 20; i++) await hf.enqueue(note, { n: i }, { after: [`note-${i}`, `note-${i + 1}`] });
  await hf.schedule(daily, { cron: "0 0 * * *", input: {} });
  await hf.enqueueMany(daily, [{}, {}, {}]);
  for (let i = 0; i < 3; i++) await (await hf.claim(daily, { worker: "anna" }))?.succeed();
  await (await hf.claim(note, { worker: "anna" }))?.succeed();
  await hf.backup(backup);
  await (await hf.claim(note, { worker: "anna" }))?.succeed();
  await hf.claim(limited, { worker: "bert", lease: "1h" });
  await (await hf.builds.start(lengths, { maxFailures: 100 })).done();
  await hf.lock("door").acquire("anna", "1h");
  await hf.close();
});

/** `npm test` destroys one page in so many, `npm run test:all` every page. */
const EVERY = LONG ? 1 : 40;

test("whichever page is lost, with a backup or without, the salvaged database is intact and usable", async (t) => {
  const count = statSync(path).size / PAGE;
  const schema = schemaPages();
  for (let i = 0; i * EVERY < count; i++) {
    const page = i * EVERY + 1;
    const { path: copy } = place(t);
    copyFileSync(path, copy);
    scribble(copy, offsetOf(page), Buffer.alloc(PAGE, i % 2 === 0 ? 0 : 0xa5));
    const said = `page ${page} of ${count}`;
    const from = i % 3 === 0 ? backup : null;
    const options = { path: copy, by: "a test", now: Date.now(), backup: from };
    const salvaged = salvageWhole({ ...options, driver: i % 2 === 0 ? "node:sqlite" : "better-sqlite3" });
    if (from === null && schema.has(page)) {
      await assert.rejects(salvaged, { code: "NOTHING_TO_SALVAGE" }, said);
      continue;
    }
    const { findings, report } = await salvaged;
    const isAudit = report.tables.some(({ table, lost }) => table.startsWith("holdfast_audit") && lost.length > 0);
    assert.deepEqual(isAudit ? [] : findings, [], said);
    await using hf = await open(copy, { log: silent });
    const { id } = await hf.enqueue(note, { n: 1 });
    const { id: one } = await hf.enqueue(limited, { tenant: "t1" });
    hf.work([note, limited, daily]);
    for (const wanted of [id, one]) assert.equal((await hf.jobs.wait(wanted, { timeout: "20s" })).state, "succeeded", said);
    const left = await hf.jobs.counts();
    assert.equal(left.waiting, 0, said);
    const build = await (await hf.builds.start(lengths, { maxFailures: 100 })).done();
    assert.equal(build.state, "FAILED", said);
    assert.deepEqual(
      (await hf.check()).findings.filter(() => !isAudit),
      [],
      said,
    );
  }
});

/** The pages that hold the definitions of tables: without them SQLite reads nothing. */
function schemaPages(): Set<number> {
  const db = new DatabaseSync(path, { readOnly: true });
  const pages = db.prepare("select pageno from dbstat where name = 'sqlite_schema'").all();
  db.close();
  return new Set(pages.map(({ pageno }) => pageno as number));
}
