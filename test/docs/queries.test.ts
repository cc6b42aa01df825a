import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, test } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { page, snippets } from "./pages.ts";

/** Each query of docs/queries.md, on a real database that has something to find. */
const PAGE = page("docs/queries.md");
const QUERIES = new Map(
  snippets(PAGE).flatMap(({ code }, block) =>
    [...code.matchAll(/^sqlite3 -readonly (?:-box )?work\.db "\n([\s\S]*?)\n"$/gm)].map(([, sql], i) => [
      `${block}.${i}`,
      sql as string,
    ]),
  ),
);
const [STALE, HOLDERS, STATES, LOCKS, COLUMNS, TABLE] = [...QUERIES.values()] as [string, string, string, string, string, string];
const greet = job<{ name: string }>({ name: "greet", run: () => {} });

let folder: string;
let path: string;
let hf: Holdfast;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "holdfast-queries-"));
  path = join(folder, "work.db");
  // An hour behind: what is claimed for a minute has expired by the clock of the sqlite3 shell.
  hf = await open(path, { clock: testClock(Date.now() - 3_600_000) });
  for (const id of ["first", "second", "third"]) await hf.enqueue(greet, { name: id }, { id });
  await hf.claim("greet", { worker: "by hand", lease: "1m", renew: "manual" });
  await hf.claim("greet", { worker: "by name", lease: "2m", renew: "auto" });
  await hf.lock("door").acquire("anna", "1m");
});
after(async () => {
  await hf.close();
  rmSync(folder, { recursive: true, force: true });
});

test("the page has six queries, and each block holds nothing else", () => {
  assert.equal(QUERIES.size, 6);
  const shells = snippets(PAGE).filter(({ info }) => info === "sh");
  assert.equal(shells.flatMap(({ code }) => code.match(/^sqlite3 /gm) ?? []).length, 6);
});

test("stale claims are counted by milliseconds", () => {
  assert.deepEqual(ask(STALE), [{ stale: 2 }]);
});

test("the holder of a running job is shown with the rest of its lease in seconds", () => {
  const rows = ask(HOLDERS) as Record<string, unknown>[];
  const held = rows[0];
  assert.deepEqual(
    rows.map(({ id, queue, name, attempt, worker, pid }) => [id, queue, name, attempt, worker, pid]),
    [
      ["first", "greet", "greet", 1, "by hand", null],
      ["second", "greet", "greet", 1, "by name", process.pid],
    ],
  );
  const left = held?.["lease_left_seconds"] as number;
  assert.ok(left < -3_500 && left > -3_700, String(left));
  assert.equal(Math.abs(Date.parse(`${String(held?.["started"])}Z`) - (Date.now() - 3_600_000)) < 120_000, true);
});

test("jobs are counted by queue, name and state", () => {
  assert.deepEqual(ask(STATES), [
    { queue: "greet", name: "greet", state: "pending", jobs: 1 },
    { queue: "greet", name: "greet", state: "running", jobs: 2 },
  ]);
});

test("an expired lock is shown with its time in seconds", () => {
  const [lock] = ask(LOCKS) as Record<string, unknown>[];
  assert.deepEqual([lock?.["name"], lock?.["holder"], lock?.["ttl_seconds"]], ["door", "anna", 60]);
});

test("the columns of a lease are in the schema", () => {
  assert.deepEqual(ask(COLUMNS), [{ lease_columns: 4 }]);
  assert.equal(ask(TABLE).length, 1);
});

test("every column of the page is in the schema", () => {
  const db = new DatabaseSync(path, { readOnly: true });
  let table = "";
  let columns = 0;
  for (const [, named = "", listed = ""] of PAGE.text.matchAll(/^\| (`holdfast_\w+`)? ?\| ([^|]+) \|/gm)) {
    if (named !== "") table = named.slice(1, -1);
    const has = db.prepare("select 1 from pragma_table_info(?) where name = ?");
    for (const [, column] of listed.matchAll(/`(\w+)`/g)) {
      assert.ok(has.get(table, column as string) !== undefined, `${table}.${column}`);
      columns++;
    }
  }
  db.close();
  assert.ok(columns > 20, String(columns));
});

/** In a process of its own, as the page says: by the sqlite3 shell, or by Node where there is none. */
function ask(sql: string): unknown[] {
  const shell = spawnSync("sqlite3", ["-readonly", "-json", path, sql], { encoding: "utf8" });
  if (shell.error === undefined) {
    assert.equal(shell.status, 0, shell.stderr);
    return shell.stdout.trim() === "" ? [] : (JSON.parse(shell.stdout) as unknown[]);
  }
  const script = `const { DatabaseSync } = require("node:sqlite");
    console.log(JSON.stringify(new DatabaseSync(process.argv[1], { readOnly: true }).prepare(process.argv[2]).all()));`;
  const node = spawnSync(process.execPath, ["-e", script, path, sql], { encoding: "utf8" });
  assert.equal(node.status, 0, node.stderr);
  return JSON.parse(node.stdout) as unknown[];
}
