import assert from "node:assert/strict";
import { describe, test } from "node:test";
import {
  actorText,
  auditHash,
  type AuditHead,
  type AuditRecord,
  followAudit,
  appendToHead,
  NO_ENTRY,
  subjectOf,
} from "../../src/core/recovery/audit.ts";

type Row = AuditRecord & { hash: string };

const ENTRY: AuditRecord = {
  seq: 1,
  at: 1_700_000_000_000,
  by: "holdfast queues pause (pid 1 on here, by alice)",
  action: "queue.paused",
  subject: "queue:mail",
  before: '{"paused":false}',
  after: '{"paused":true}',
};

describe("the hash of an entry", () => {
  test("the hash of an entry never changes, so that old chains stay valid", () => {
    assert.equal(auditHash(NO_ENTRY.hash, ENTRY), "4a37c23a676da662f1bf583fb9d4388eb83cbdbdc82d251faf787f65a8cd478a");
  });

  test("the hash changes with every part, also with parts that only look alike when joined", () => {
    const others: AuditRecord[] = [
      { ...ENTRY, seq: 2 },
      { ...ENTRY, at: ENTRY.at + 1 },
      { ...ENTRY, by: "mallory" },
      { ...ENTRY, action: "queue.resumed" },
      { ...ENTRY, subject: "queue:mai" },
      { ...ENTRY, before: null },
      { ...ENTRY, before: "null" },
      { ...ENTRY, after: '{"paused": true}' },
      { ...ENTRY, action: "queue.pausedqueue", subject: ":mail" },
      { ...ENTRY, before: ENTRY.after, after: ENTRY.before },
    ];
    const hashes = [ENTRY, ...others].map((entry) => auditHash(NO_ENTRY.hash, entry));
    hashes.push(auditHash("f".repeat(64), ENTRY));
    assert.equal(new Set(hashes).size, others.length + 2);
  });
});

describe("along the chain", () => {
  const rows = chain(8);
  const head = headOf(rows);
  const follow = (given: readonly Row[], more: Partial<Parameters<typeof followAudit>[0]> = {}) => {
    const { fault, head: upTo } = followAudit({ from: NO_ENTRY, rows: given, isLast: true, head, known: [], ...more });
    return fault === null ? upTo.seq : `${fault.kind} ${fault.seq}`;
  };

  test("an unchanged chain is valid", () => {
    assert.equal(follow(rows), 8);
    assert.equal(follow([], { head: NO_ENTRY }), 0);
  });

  test("the first edited entry is found, whichever part was edited", () => {
    for (const [i, row] of rows.entries()) {
      for (const part of ["by", "action", "subject", "before", "after"] as const) {
        assert.equal(follow(rows.with(i, { ...row, [part]: "other" })), `altered ${row.seq}`, part);
      }
      assert.equal(follow(rows.with(i, { ...row, at: row.at - 1 })), `altered ${row.seq}`);
      assert.equal(follow(rows.with(i, { ...row, hash: "f".repeat(64) })), `altered ${row.seq}`);
    }
  });

  test("an edited entry with a new hash is found by the next entry, and the last by the head", () => {
    for (const [i, row] of rows.entries()) {
      const edited = { ...row, by: "mallory" };
      const previous = rows[i - 1]?.hash ?? NO_ENTRY.hash;
      const found = follow(rows.with(i, { ...edited, hash: auditHash(previous, edited) }));
      assert.equal(found, `altered ${Math.min(8, row.seq + 1)}`);
    }
  });

  test("removed entries are named, wherever they were", () => {
    assert.equal(follow(rows.slice(1)), "removed 1");
    assert.equal(follow([...rows.slice(0, 3), ...rows.slice(5)]), "removed 4");
    assert.equal(follow(rows.slice(0, 6)), "cut 7");
    assert.equal(follow([]), "cut 1");
  });

  test("inserted and reordered entries are found", () => {
    const [third, fourth] = [rows[2], rows[3]] as [Row, Row];
    const swapped = rows.with(2, { ...fourth, seq: 3 }).with(3, { ...third, seq: 4 });
    assert.equal(follow(swapped), "altered 3");
    assert.equal(follow([{ ...third, seq: 0 }, ...rows]), "added 0");
    assert.equal(follow([...rows, { ...third, seq: 9 }]), "altered 9");
    const next = { ...third, seq: 9 };
    assert.equal(follow([...rows, { ...next, hash: auditHash(head.hash, next) }]), "added 9", "the head knows nothing of it");
    const shifted = [...rows.slice(0, 3), third, ...rows.slice(3)].map((row, i) => Object.assign({}, row, { seq: i + 1 }));
    assert.equal(follow(shifted), "altered 4");
  });

  test("without a head, a removed end is not detectable", () => {
    assert.equal(follow(rows, { head: null }), "removed 8");
  });

  test("a chain rewritten as a whole is found by an auditor who kept an old head", () => {
    const kept = headOf(rows.slice(0, 5));
    const forged = chain(8, "mallory");
    assert.equal(follow(forged, { head: headOf(forged) }), 8, "by itself it is whole");
    assert.equal(follow(forged, { head: headOf(forged), known: [kept] }), "altered 5");
    const short = rows.slice(0, 4);
    assert.equal(follow(short, { head: headOf(short), known: [kept] }), "cut 5");
  });

  test("unused numbers are not a gap, and a head between two entries is one", () => {
    const gaps = chain(4, "x", (n) => n * 2);
    assert.equal(follow(gaps, { head: headOf(gaps) }), 8);
    assert.equal(follow(gaps, { head: headOf(gaps), known: [{ seq: 5, hash: "f".repeat(64) }] }), "removed 5");
  });

  test("verification page by page has the same result", () => {
    let from = NO_ENTRY;
    for (const n of [0, 3, 6]) {
      const page = { from, rows: rows.slice(n, n + 3), isLast: n === 6, head, known: [head] };
      const followed = followAudit(page);
      assert.equal(followed.fault, null);
      from = followed.head;
    }
    assert.deepEqual(from, head);
  });
});

test("an actor is a process, and a person if there is one", () => {
  const process = { program: "holdfast stop", pid: 7, host: "here" };
  assert.equal(actorText(process), "holdfast stop (pid 7 on here)");
  assert.equal(actorText({ ...process, user: "alice" }), "holdfast stop (pid 7 on here, by alice)");
});

test("a subject is named after the kind of its action", () => {
  assert.equal(subjectOf("queue.paused", "mail"), "queue:mail");
  assert.equal(subjectOf("lead.broken", "a:b"), "lead:a:b");
});

function chain(length: number, by = "alice", seqOf = (n: number) => n): Row[] {
  let head = NO_ENTRY;
  return Array.from({ length }, (_, i) => {
    const record = { ...ENTRY, seq: seqOf(i + 1), at: ENTRY.at + i, by };
    head = appendToHead(head, record);
    return Object.assign(record, { hash: head.hash });
  });
}

function headOf(rows: readonly Row[]): AuditHead {
  const { seq, hash } = rows.at(-1) as Row;
  return { seq, hash };
}
