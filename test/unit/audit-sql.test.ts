import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { GUARDS } from "../../src/store/sqlite/schema.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { AuditEntry } from "../../src/store/audit.ts";
import type { Store } from "../../src/store/store.ts";
import { testClock } from "../../src/testing/index.ts";
import { becomeLater, oldDatabase } from "./old-database.ts";
import { auditHead } from "../conformance/parts.ts";

const OPTIONS = { driver: "node:sqlite", clock: testClock(), random: () => 0.5, busyTimeout: 20 } as const;

describe("the table of the audit", () => {
  test("the audit table rejects changed, removed and inserted entries on every connection", async (t) => {
    const { db } = await written(t);
    const refused = {
      "an update": "update holdfast_audit set actor = 'mallory' where seq = 3",
      "an update that changes nothing": "update holdfast_audit set actor = actor",
      "a delete": "delete from holdfast_audit where seq = 5",
      "a delete of all": "delete from holdfast_audit",
      "an insert without a hash": "insert into holdfast_audit (at, actor, action, subject) values (1, 'm', 'a.b', 's')",
      "an insert before the head":
        "insert into holdfast_audit (seq, at, actor, action, subject, hash) values (0, 1, 'm', 'a.b', 's', 'h')",
      "an insert in the place of another":
        "insert or replace into holdfast_audit (seq, at, actor, action, subject, hash) values (3, 1, 'm', 'a.b', 's', 'h')",
      "a head that goes back": "update holdfast_audit_head set seq = 3, hash = (select hash from holdfast_audit where seq = 3)",
      "a head without an entry": "update holdfast_audit_head set seq = 9, hash = 'h'",
      "no head": "delete from holdfast_audit_head",
    };
    const before = rowsOf(db);
    for (const [what, sql] of Object.entries(refused)) {
      assert.throws(() => db.exec(sql), /the audit|CHECK|UNIQUE/, what);
      assert.deepEqual(rowsOf(db), before, what);
    }
  });

  const tampering: Record<string, { how: string; found: string }> = {
    "an entry edited": { how: "update holdfast_audit set actor = 'mallory' where seq = 3", found: "altered 3" },
    "the time of an entry edited": { how: "update holdfast_audit set at = at - 1 where seq = 6", found: "altered 6" },
    "what was before edited": { how: "update holdfast_audit set before = '{}' where seq = 1", found: "altered 1" },
    "an entry removed": { how: "delete from holdfast_audit where seq = 4", found: "removed 4" },
    "the first entries removed": { how: "delete from holdfast_audit where seq < 3", found: "removed 1" },
    "an entry put in before all others": { how: copy(2, 0), found: "added 0" },
    "an entry put in behind the head": { how: copy(2, 7), found: "altered 7" },
    "two entries that change places": {
      how: `update holdfast_audit set seq = -2 where seq = 2; update holdfast_audit set seq = 2 where seq = 3;
            update holdfast_audit set seq = 3 where seq = -2`,
      found: "altered 2",
    },
    "a hash taken away": { how: "update holdfast_audit set hash = null where seq = 5", found: "altered 5" },
    "the tail cut off": { how: "delete from holdfast_audit where seq > 4", found: "cut 5" },
    "all of it removed": { how: "delete from holdfast_audit", found: "cut 1" },
    "the head removed": { how: "delete from holdfast_audit_head", found: "removed 6" },
    "the head's hash edited": { how: "update holdfast_audit_head set hash = 'x'", found: "altered 6" },
  };
  for (const [what, { how, found }] of Object.entries(tampering)) {
    test(`${what}, by an attacker who removes the triggers and restores them: the check finds it`, async (t) => {
      const { db, store } = await written(t);
      unguarded(db, () => db.exec(how));
      assert.equal(await verdict(store), found);
    });
  }

  test("an end cut off together with its head is found by a head kept elsewhere", async (t) => {
    const { db, store } = await written(t);
    const known = [await auditHead(store)];
    unguarded(db, () => {
      db.exec("delete from holdfast_audit where seq > 4");
      db.exec("update holdfast_audit_head set seq = 4, hash = (select hash from holdfast_audit where seq = 4)");
    });
    assert.equal(await verdict(store), 4, "by itself it is whole");
    assert.equal(await verdict(store, known), "cut 5");
  });

  test("without its head the audit accepts no entry, and the action is rejected", async (t) => {
    const { db, store } = await written(t);
    unguarded(db, () => db.exec("delete from holdfast_audit_head"));
    await assert.rejects(store.queues.setPaused("q", true), { code: "DAMAGED" });
    assert.deepEqual(
      (await store.queries.overview()).queues.filter(({ paused }) => paused),
      [],
    );
  });

  for (const { name, sql } of GUARDS) {
    test(`without ${name}, or with a different one, the audit is not valid`, async (t) => {
      const { db, store } = await written(t);
      assert.equal(await verdict(store), 6);
      db.exec(`drop trigger ${name}`);
      const { fault } = await verifyAudit(store);
      assert.deepEqual([fault?.kind, fault?.message.includes(name)], ["unguarded", true]);
      db.exec(sql.replace(/select raise[^;]*/, "select 1"));
      assert.equal(await verdict(store), "unguarded 6");
      db.exec(`drop trigger ${name}`);
      db.exec(sql);
      assert.equal(await verdict(store), 6);
    });
  }
});

describe("a database of the schema before", () => {
  test("a migrated database records the migration in its audit", async (t) => {
    const { store } = await old(t);
    const [{ seq, by, action, subject, before, after }] = (await store.audit.page({ after: 0, limit: 2 })) as [AuditEntry];
    const moved = { before: { version: 1 }, after: { version: 2, name: "later" } };
    assert.deepEqual(
      { seq, by, action, subject, before, after },
      { seq: 1, by: "the opener", action: "schema.migrated", subject: "schema", ...moved },
    );
    assert.equal(await verdict(store), 1);
  });

  test("a migrated database has the triggers of a new one", async (t) => {
    const { path } = await old(t);
    const db = new DatabaseSync(path);
    for (const { name, sql } of GUARDS) {
      assert.deepEqual(db.prepare("select sql from sqlite_master where name = ?").get(name)?.["sql"], sql);
    }
    db.close();
  });
});

/** The number up to which it is whole, or what is wrong where. */
async function verdict(store: Store, known: Parameters<typeof verifyAudit>[1] = []): Promise<number | string> {
  const { ok, fault, head } = await verifyAudit(store, known);
  assert.equal(ok, fault === null);
  return fault === null ? head.seq : `${fault.kind} ${fault.seq}`;
}

/** A file with six entries, and another connection that writes into it. */
async function written(t: TestContext): Promise<{ db: DatabaseSync; store: Store }> {
  const path = join(folder(t), "work.db");
  const store = await SqliteStore.open(path, OPTIONS);
  for (const queue of ["a", "b", "c"]) {
    await store.queues.setPaused(queue, true);
    await store.queues.setPaused(queue, false);
  }
  const db = new DatabaseSync(path);
  t.after(async () => {
    db.close();
    await store.close();
  });
  return { db, store };
}

/** A file of the schema before, opened by a Holdfast of the later one. */
async function old(t: TestContext): Promise<{ path: string; store: Store }> {
  const path = join(folder(t), "work.db");
  becomeLater(t);
  oldDatabase(path);
  const store = await SqliteStore.open(path, { ...OPTIONS, actor: "the opener" });
  t.after(() => store.close());
  return { path, store };
}

function folder(t: TestContext): string {
  const made = mkdtempSync(join(tmpdir(), "holdfast-audit-"));
  t.after(() => rmSync(made, { recursive: true }));
  return made;
}

/** What a determined attacker does: remove the guards, run the change, put the guards back. */
function unguarded(db: DatabaseSync, operation: () => void): void {
  for (const { name } of GUARDS) db.exec(`drop trigger ${name}`);
  operation();
  for (const { sql } of GUARDS) db.exec(sql);
}

function copy(from: number, to: number): string {
  return `insert into holdfast_audit (seq, at, actor, action, subject, before, after, hash)
          select ${to}, at, actor, action, subject, before, after, hash from holdfast_audit where seq = ${from}`;
}

function rowsOf(db: DatabaseSync): unknown {
  return [db.prepare("select * from holdfast_audit order by seq").all(), db.prepare("select * from holdfast_audit_head").all()];
}
