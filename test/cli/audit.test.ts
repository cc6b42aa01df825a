import assert from "node:assert/strict";
import { userInfo } from "node:os";
import { DatabaseSync } from "node:sqlite";
import { after, before, test } from "node:test";
import { open } from "../../src/index.ts";
import type { AuditVerdict } from "../../src/engine/maintenance/check.ts";
import type { AuditEntry } from "../../src/store/audit.ts";
import { GUARDS } from "../../src/store/sqlite/schema.ts";
import { Place } from "./holdfast.ts";

let place: Place;
before(async () => {
  place = await Place.make();
  const hf = await open(place.db, { program: "setup" });
  await hf.queues.pause("mail");
  await hf.lock("left").acquire("agent-1", 1);
  await hf.close();
});
after(() => place.remove());

const entries = async (...args: string[]): Promise<AuditEntry[]> => {
  const { stdout, code } = await place.run(["audit", ...args, "--json"]);
  assert.equal(code, 0);
  return stdout
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as AuditEntry);
};

test("audit shows who did what: the program, the process, and on the command line the person", async () => {
  assert.equal((await place.run(["queues", "resume", "mail"])).code, 0);
  assert.equal((await place.run(["unlock", "left"])).code, 0);
  const [paused, resumed, unlocked] = await entries();
  assert.match(paused?.by ?? "", /^setup \(pid \d+ on [^,]+\)$/, "a program is not an operator");
  const { username } = userInfo();
  const by = (program: string) => new RegExp(`^${program} \\(pid \\d+ on .+, by ${username}\\)$`);
  assert.deepEqual([resumed?.action, resumed?.before, resumed?.after], ["queue.resumed", { paused: true }, { paused: false }]);
  assert.match(resumed?.by ?? "", by("holdfast queues resume"));
  assert.deepEqual([unlocked?.action, unlocked?.subject], ["lock.broken", "lock:left"]);
  assert.match(unlocked?.by ?? "", by("holdfast unlock"));
  assert.deepEqual(await entries("--limit", "1"), [unlocked]);
  assert.deepEqual(await entries("--subject", "queue:mail"), [paused, resumed]);
  const { stdout } = await place.run(["audit"]);
  assert.match(stdout, /^SEQ +AT +ACTION +SUBJECT +BY +AFTER\n +1 .* queue\.paused +queue:mail/);
});

test("audit verify says that it is whole, and up to where", async () => {
  const verdict = await place.json<AuditVerdict>(["audit", "verify"]);
  assert.deepEqual([verdict.ok, verdict.entries, verdict.head.seq, verdict.fault], [true, 3, 3, null]);
  const head = `${verdict.head.seq}:${verdict.head.hash}`;
  const { stdout, code } = await place.run(["audit", "verify", "--head", head]);
  assert.equal(code, 0);
  assert.equal(stdout, `The audit is whole: 3 entries.\nhead ${head}\n`);
});

test("audit verify exits 5 when a head that was kept is not in it, and 2 when that is none", async () => {
  const { fault } = await place.json<AuditVerdict>(["audit", "verify", "--head", `9:${"a".repeat(64)}`], 5);
  assert.deepEqual([fault?.kind, fault?.seq], ["cut", 4]);
  assert.equal((await place.run(["audit", "verify", "--head", "9"])).code, 2);
});

test("audit verify names the first entry that was edited, and exits 5", async () => {
  const db = new DatabaseSync(place.db);
  for (const { name } of GUARDS) db.exec(`drop trigger ${name}`);
  db.exec("update holdfast_audit set actor = 'another' where seq = 2");
  for (const { sql } of GUARDS) db.exec(sql);
  db.close();
  const { stdout, code } = await place.run(["audit", "verify"]);
  assert.equal(code, 5);
  assert.match(
    stdout,
    /^The audit is not as it was written \(altered\)\. Entry 2 is not as it was written.* Up to entry 1 it is whole\.\n/,
  );
  const { ok, fault, head } = await place.json<AuditVerdict>(["audit", "verify"], 5);
  assert.deepEqual([ok, fault?.kind, fault?.seq, head.seq], [false, "altered", 2, 1]);
});
