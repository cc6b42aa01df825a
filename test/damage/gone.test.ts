import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { setImmediate as turn } from "node:timers/promises";
import { describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { files, job, open, pipeline } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { place, silent } from "./place.ts";

const BIN = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
const LINUX = process.platform === "linux";
const GONE = { code: "DATABASE_GONE", hint: /Restart this process/ };
const greet = job<number>({ name: "greet", run: () => {} });

/** The command in another process, which opens the database and closes it. */
function holdfast(path: string, ...args: string[]): string {
  return execFileSync(process.execPath, [BIN, ...args, "--db", path], { encoding: "utf8" });
}

/** Runs a script in another process, with the database as `db`. */
function elsewhere(path: string, script: string): { stdout: string; signal: NodeJS.Signals | null } {
  const code = `import { DatabaseSync } from "node:sqlite"; const db = new DatabaseSync(${JSON.stringify(path)}); ${script}`;
  return spawnSync(process.execPath, ["--input-type=module", "-e", code], { encoding: "utf8" });
}

/** How many jobs another process sees. */
function seenElsewhere(path: string): number {
  return Number(elsewhere(path, `console.log(db.prepare("select count(*) as n from holdfast_jobs").get().n)`).stdout);
}

/** Reads all files of the database, as a copy of its folder does: all locks of this process on them are gone then. */
function readFiles(path: string): void {
  for (const end of ["", "-wal", "-shm"]) readFileSync(path + end);
}

function removeFiles(path: string): void {
  for (const name of readdirSync(dirname(path))) rmSync(join(dirname(path), name), { recursive: true });
}

/** A log that keeps its errors, and tells when the first comes. */
function errorLog() {
  const errors: string[] = [];
  const { promise: first, resolve } = Promise.withResolvers<void>();
  const error = (message: string) => {
    errors.push(message);
    resolve();
  };
  return { errors, first, log: { ...silent, error } };
}

test("a build over a folder with another live database reads nothing of it, and loses none of its commits", async (t) => {
  const { folder } = place(t);
  writeFileSync(join(folder, "a.md"), "a");
  mkdirSync(join(folder, "data"));
  const path = join(folder, "data", "other.db");
  await using other = await open(path, { log: silent });
  await other.enqueue(greet, 0);
  const ran: string[] = [];
  const warnings: string[] = [];
  {
    const log = { ...silent, warn: (message: string) => warnings.push(message) };
    await using hf = await open(join(folder, "build.db"), { log });
    const docs = pipeline("docs")
      .source(files("**/*", { root: folder }))
      .stage("read", {}, ({ target }) => {
        ran.push(target.id);
        return null;
      });
    const planned = await hf.builds.plan(docs);
    const why = /^Skipped data\/other\.db: it is a database, since other\.db-\w+ is beside it\./;
    assert.equal(planned.warnings.length, 1);
    assert.match(planned.warnings[0] ?? "", why);
    const build = await (await hf.builds.start(docs)).done();
    assert.equal(build.state, "SUCCESS");
    assert.match(warnings.find((warning) => warning.startsWith("Skipped")) ?? "", why);
  }
  assert.deepEqual(ran, ["a.md"]);
  holdfast(path, "status");
  await Promise.all(Array.from({ length: 100 }, (_, i) => other.enqueue(greet, i)));
  assert.equal(seenElsewhere(path), 101);
});

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  for (const durability of ["power", "process"] as const) {
    describe(`a handle whose files are replaced (${driver}, ${durability})`, () => {
      test("a handle whose files are removed rejects the enqueues in flight and every later write, and can be read", async (t) => {
        const { path } = place(t);
        const { errors, log } = errorLog();
        await using hf = await open(path, { driver, durability, log });
        await hf.enqueue(greet, 0);
        // Longer ago than the interval of the check at "process".
        for (const since = performance.now(); performance.now() - since < 2;);
        const inFlight = Array.from({ length: 100 }, (_, i) => hf.enqueue(greet, i));
        removeFiles(path);
        const results = await Promise.allSettled(inFlight);
        assert.deepEqual(new Set(results.map(({ status }) => status)), new Set(["rejected"]));
        await assert.rejects(inFlight[0] as Promise<unknown>, GONE);
        await assert.rejects(hf.enqueue(greet, 1), GONE);
        await assert.rejects(hf.enqueueMany(greet, [1]), GONE);
        await assert.rejects(
          hf.transaction(() => {}),
          GONE,
        );
        await assert.rejects(hf.claim("greet", { worker: "me" }), GONE);
        assert.throws(() => hf.work([greet]), GONE);
        assert.equal((await hf.jobs.counts()).pending, 1);
        assert.deepEqual(errors, ["the database's files were replaced; this handle is read-only"]);
      });

      test("a handle whose WAL another process removed acknowledges nothing more, and nothing else is lost", async (t) => {
        const { path } = place(t);
        const hf = await open(path, { driver, durability, log: silent });
        await hf.enqueue(greet, 0);
        // The log is removed between the begin and the commit: only a check after the commit can notice.
        const late = hf.transaction(({ db }) => {
          void hf.enqueue(greet, 1, { tx: db });
          for (const since = performance.now(); performance.now() - since < 2;);
          readFiles(path);
          holdfast(path, "status");
          db.exec("create table rows_of_mine (x)");
        });
        if (LINUX) await assert.rejects(late, GONE);
        else await late;
        // A second writer, which is killed before its log is copied into the file.
        const rows = `db.exec("create table rows_of_others (x)"); for (let i = 0; i < 500; i++) db.exec("insert into rows_of_others values (randomblob(300))");`;
        assert.equal(elsewhere(path, `${rows} process.kill(process.pid, "SIGKILL")`).signal, "SIGKILL");
        if (LINUX) await assert.rejects(hf.enqueue(greet, 2), GONE);
        await hf.close();
        const found = elsewhere(
          path,
          `console.log(db.prepare("pragma integrity_check").get().integrity_check, db.prepare("select count(*) as n from rows_of_others").get().n)`,
        );
        assert.equal(found.stdout.trim(), "ok 500");
        if (LINUX) assert.equal(seenElsewhere(path), 1);
      });
    });
  }
}

test("a process that exits without closing does not change the WAL of the others", { skip: !LINUX }, async (t) => {
  const { path } = place(t);
  const script = `
    import { readFileSync } from "node:fs";
    import { execFileSync } from "node:child_process";
    const { open, job } = await import(${JSON.stringify(new URL("../../src/index.ts", import.meta.url).href)});
    const hf = await open(${JSON.stringify(path)});
    const greet = job({ name: "greet", run: () => {} });
    await hf.enqueue(greet, 0);
    for (const end of ["", "-wal", "-shm"]) readFileSync(${JSON.stringify(path)} + end);
    execFileSync(process.execPath, [${JSON.stringify(BIN)}, "status", "--db", ${JSON.stringify(path)}]);
    await hf.enqueue(greet, 1).catch((error) => console.log(error.code));
    try {
      execFileSync(process.execPath, ["--input-type=module", "-e", ${JSON.stringify(
        `import { DatabaseSync } from "node:sqlite"; const db = new DatabaseSync(${JSON.stringify(path)}); db.exec("create table rows_of_others (x)"); db.exec("insert into rows_of_others values (1)"); process.kill(process.pid, "SIGKILL")`,
      )}]);
    } catch {}
    process.exit(0);`;
  const ended = spawnSync(process.execPath, ["--input-type=module", "-e", script], { encoding: "utf8" });
  assert.equal(ended.stdout.trim(), "DATABASE_GONE", ended.stderr);
  assert.equal(elsewhere(path, `console.log(db.prepare("select count(*) as n from rows_of_others").get().n)`).stdout.trim(), "1");
});

test("after another database was put at the path, only a new handle writes to it", async (t) => {
  const { folder, path } = place(t);
  const old = await open(path, { log: silent });
  await old.enqueue(greet, 0);
  const aside = join(folder, "aside");
  mkdirSync(aside);
  for (const end of ["", "-wal", "-shm"]) renameSync(path + end, join(aside, `work.db${end}`));
  elsewhere(path, `db.exec("create table not_ours (x)"); db.close()`);
  await assert.rejects(old.enqueue(greet, 1), GONE);
  await old.close();
  assert.equal(elsewhere(path, `console.log(db.prepare("select count(*) as n from not_ours").get().n)`).stdout.trim(), "0");
});

test("an idle worker notices on the janitor's tick that the files were removed", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const { path } = place(t);
  const { errors, first, log } = errorLog();
  const clock = testClock();
  await using hf = await open(path, { clock, log });
  await using _worker = hf.work([greet]);
  removeFiles(path);
  assert.deepEqual(errors, []);
  await clock.advance("10s");
  await first;
  assert.deepEqual(errors, ["the database's files were replaced; this handle is read-only"]);
});

test("a process without a worker notices removed files, too", async (t) => {
  const { path } = place(t);
  const { errors, first, log } = errorLog();
  await using _hf = await open(path, { log });
  // Nothing else keeps this process running, and one that ends closes its handles.
  const stayAlive = setInterval(() => {}, 1_000);
  t.after(() => clearInterval(stayAlive));
  removeFiles(path);
  await first;
  assert.deepEqual(errors, ["the database's files were replaced; this handle is read-only"]);
});

test(
  "a worker whose handler copies the database's folder logs an error and claims no more, and doctor reports it",
  { skip: !LINUX },
  async (t) => {
    const { folder } = place(t);
    const { errors, first, log } = errorLog();
    const copied: number[] = [];
    const copy = job<number>({
      name: "copy",
      run: ({ input }) => {
        cpSync(join(folder, "data"), join(folder, `copy-${input}`), { recursive: true });
        copied.push(input);
      },
    });
    const database = join(folder, "data", "work.db");
    mkdirSync(dirname(database));
    await using hf = await open(database, { log });
    await using _worker = hf.work([copy]);
    await hf.jobs.wait((await hf.enqueue(copy, 1)).id);
    await first;
    assert.deepEqual(errors, ["the locks on the database are lost; no more jobs are claimed"]);
    await assert.rejects(hf.claim("copy", { worker: "me" }), { code: "LOCKS_LOST", message: /work\.db-shm/ });
    const second = await hf.enqueue(copy, 2);
    for (let i = 0; i < 10; i++) await turn();
    assert.equal((await hf.jobs.get(second.id))?.state, "pending");
    assert.deepEqual(copied, [1]);
    const doctor = spawnSync(process.execPath, [BIN, "doctor", "--db", database], { encoding: "utf8" });
    assert.match(doctor.stdout, new RegExp(`Process ${process.pid} on .* has lost its locks`));
  },
);
