import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";
import { NO_ENTRY } from "../../src/core/recovery/audit.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { systemClock } from "../../src/engine/host.ts";
import { MIGRATIONS } from "../../src/store/postgres/migrate.ts";
import { GUARDS } from "../../src/store/postgres/schema.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { auditHead, newJob, breakLock } from "../conformance/parts.ts";
import { type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

describe("the audit on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  let handles: Handles;
  before(async () => {
    server = await startServer();
    handles = await openHandles(server, 2);
  });
  after(async () => {
    await handles.close();
    await server.close();
  });
  // A schema for each test would cost more than all of them.
  beforeEach(async () => {
    await tamper(`truncate audit; delete from audit_head;
      insert into audit_head (id, seq, hash) values (1, ${NO_ENTRY.seq}, '${NO_ENTRY.hash}')`);
  });
  const store = (n = 0) => handles.stores[n] as PostgresStore;

  const verdict = async (known: Parameters<typeof verifyAudit>[1] = []) => {
    const { fault, head } = await verifyAudit(store(), known);
    return fault === null ? head.seq : `${fault.kind} ${fault.seq}`;
  };
  /** A superuser who wants to can write past every trigger. */
  const tamper = (text: string) => handles.query(`set session_replication_role = replica; ${text}`);
  const sixEntries = async () => {
    for (const queue of ["a", "b", "c"]) {
      await store().queues.setPaused(queue, true);
      await store(1).queues.setPaused(queue, false);
    }
  };

  test("the audit table rejects changed, removed and inserted entries on every connection", async () => {
    await sixEntries();
    const refused = [
      "update audit set actor = 'mallory' where seq = 3",
      "delete from audit where seq = 5",
      "truncate audit",
      "insert into audit (seq, at, actor, action, subject, hash) values (0, 1, 'm', 'a.b', 's', 'h')",
      "insert into audit (seq, at, actor, action, subject) values (7, 1, 'm', 'a.b', 's')",
      "insert into audit (at, actor, action, subject, hash) values (1, 'm', 'a.b', 's', 'h')",
      "update audit_head set seq = 3, hash = (select hash from audit where seq = 3)",
      "update audit_head set seq = 9, hash = 'h'",
      "delete from audit_head",
      "truncate audit_head",
    ];
    for (const text of refused) await assert.rejects(handles.query(text), /the audit|null value/, text);
    assert.equal(await verdict(), 6);
  });

  const tampering: Record<string, [how: string, found: string]> = {
    "an entry edited": ["update audit set actor = 'mallory' where seq = 3", "altered 3"],
    "an entry removed": ["delete from audit where seq = 4", "removed 4"],
    "two entries that change places": [
      "update audit set seq = -2 where seq = 2; update audit set seq = 2 where seq = 3; update audit set seq = 3 where seq = -2",
      "altered 2",
    ],
    "the tail cut off": ["delete from audit where seq > 4", "cut 5"],
    "an entry put in before all others": [
      "insert into audit (seq, at, actor, action, subject, hash) values (-7, 1, 'm', 'a.b', 's', 'h')",
      "added -7",
    ],
    "the head removed": ["delete from audit_head", "removed 6"],
  };
  for (const [what, [how, found]] of Object.entries(tampering)) {
    test(`${what}, by a role that no trigger stops, is found by the check`, async () => {
      await sixEntries();
      await tamper(how);
      assert.equal(await verdict(), found);
    });
  }

  test("a missing or disabled trigger is named", async () => {
    await sixEntries();
    await handles.query("alter table audit disable trigger audit_unchanged");
    assert.equal(await verdict(), "unguarded 6");
    await handles.query(
      "alter table audit enable trigger audit_unchanged; alter trigger audit_head_forward on audit_head rename to another",
    );
    const { fault } = await verifyAudit(store());
    assert.match(fault?.message ?? "", /audit_head_forward\.$/);
    await handles.query("alter trigger another on audit_head rename to audit_head_forward");
    assert.equal(await verdict(), 6);
  });

  test("without its head the audit accepts no entry, and the action is rejected", async () => {
    await tamper("delete from audit_head");
    await assert.rejects(store().queues.setPaused("never", true), { code: "DAMAGED" });
    assert.deepEqual(
      (await store().queries.overview()).queues.filter(({ paused }) => paused),
      [],
    );
    assert.deepEqual(await auditHead(store()), NO_ENTRY);
  });

  test("a transaction that waits for a row does not hold the audit's head meanwhile", async () => {
    const when = { cron: "0 * * * *", timezone: "UTC", missed: "skip", within: null, overlap: true } as const;
    await store().schedules.save({ key: "hourly", ...when, template: newJob(), nextAt: 9e12 });
    const slow = await handles.bystander();
    await slow.query("select 1 from schedules where key = 'hourly' for update");
    for (const name of ["one", "two"]) await store().locks.acquire(name, "anna", name, 60_000);
    // One transaction, which has something to write down already.
    const waits = Promise.all([breakLock(store(), "one"), store().schedules.update("hourly", "paused")]);
    await handles.blocked(1);
    assert.equal(await breakLock(store(1), "two"), true, "others act, and it is written down");
    assert.equal((await auditHead(store(1))).seq, 2);
    await slow.end("commit");
    assert.deepEqual(await waits, [true, true]);
    assert.deepEqual(
      (await store(1).audit.page({ after: 0, limit: 10 })).map(({ subject }) => subject),
      ["schedule:hourly", "lock:two", "lock:one", "schedule:hourly"],
    );
    assert.equal(await verdict(), 4);
  });

  test("a transaction that waits for the audit's head gets the next number", async () => {
    const slow = await handles.bystander();
    await slow.query("select 1 from audit_head where id = 1 for update");
    const both = [store().queues.setPaused("a", true), store(1).queues.setPaused("b", true)];
    await handles.blocked(2);
    await slow.end("rollback");
    assert.deepEqual(await Promise.all(both), [true, true]);
    assert.equal(await verdict(), 2);
  });

  test("a migrated schema records the migration in its audit", async (t) => {
    const options = { schema: handles.schema, clock: systemClock, injected: false, random: Math.random, actor: "the opener" };
    MIGRATIONS.push({ name: "later", sql: (s) => `create table ${s}.later (n integer)` });
    t.after(() => void MIGRATIONS.pop());
    const opened = await PostgresStore.open(server.url(), options);
    t.after(() => opened.close());
    const [last] = await opened.audit.page({ after: 0, limit: 10 });
    assert.deepEqual(
      [last?.by, last?.action, last?.before, last?.after],
      ["the opener", "schema.migrated", { version: 1 }, { version: 2 }],
    );
    assert.equal((await verifyAudit(opened)).fault, null);
  });

  test("the list of triggers has every trigger of the schema", async () => {
    const made = await handles.query(
      "select tgname from pg_trigger where tgrelid in ('audit'::regclass, 'audit_head'::regclass) and not tgisinternal order by 1",
    );
    assert.deepEqual(
      made.map(({ tgname }) => tgname),
      GUARDS.toSorted(),
    );
  });
});
