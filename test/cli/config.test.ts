import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { after, before, suite, test, type TestContext } from "node:test";
import { pathToFileURL } from "node:url";
import { open } from "../../src/index.ts";
import { firstOf } from "../selection.ts";
import { JOBS, type JsonError, Place, Running } from "./holdfast.ts";

const jobs = pathToFileURL(JOBS).href;
/** Holdfast, as if it were installed. */
const RESOLVE = pathToFileURL(join(import.meta.dirname, "../docs/resolve.ts")).href;

let place: Place;
before(async () => (place = await Place.make()));
after(() => place.remove());

/** A folder of its own with these files; a command that runs there knows no HOLDFAST_DB. */
async function project(t: TestContext, files: Record<string, string>) {
  const cwd = await mkdtemp(join(place.folder, "project-"));
  t.after(() => rm(cwd, { recursive: true, force: true }));
  for (const [file, text] of Object.entries(files)) {
    await mkdir(dirname(join(cwd, file)), { recursive: true });
    await writeFile(join(cwd, file), text);
  }
  const start = (args: string[], env: NodeJS.ProcessEnv = {}) =>
    new Running(args, { cwd, node: ["--import", RESOLVE], env: { NODE_COMPILE_CACHE: place.cache, ...env } });
  const json = async <T>(args: string[], code = 0, env: NodeJS.ProcessEnv = {}): Promise<T> => {
    const ended = await start([...args, "--json"], env).ended;
    assert.equal(ended.code, code, ended.stdout + ended.stderr);
    return JSON.parse(ended.stdout) as T;
  };
  return { cwd, start, json };
}

suite("holdfast.config", () => {
  test("names the modules: work and enqueue need no files, and enqueue checks the input", async (t) => {
    const { cwd, start, json } = await project(t, {
      "holdfast.config.ts": `import type { Config } from "holdfast";
        export default { db: "data/queue.db", modules: ["./src/all.ts", "src/more/*.ts"] } satisfies Config;`,
      "src/all.ts": `export { double, others } from ${JSON.stringify(jobs)};`,
      "src/more/a.ts": `export { default } from ${JSON.stringify(jobs)};`,
      "src/more/b.ts": `export { double } from ${JSON.stringify(jobs)};`,
      "data/here": "",
    });
    const { id } = await json<{ id: string }>(["enqueue", "double", "21"]);
    const { error } = await json<JsonError>(["enqueue", "double", '"x"'], 2);
    assert.equal(error.code, "INPUT_INVALID");
    const unknown = await json<JsonError>(["enqueue", "treble", "1"], 2);
    assert.equal(unknown.error.message, 'No module of holdfast.config.ts exports a job "treble".');
    assert.match(unknown.error.hint, /double, hang, deaf, echo/);

    const worker = start(["work"]);
    await worker.said("double, hang, deaf, echo");
    await using hf = await open(join(cwd, "data/queue.db"));
    const done = await hf.jobs.wait(id);
    assert.deepEqual([done.state, done.output, done.queue], ["succeeded", 42, "sums"]);
    worker.child.kill("SIGTERM");
    assert.equal((await worker.ended).code, 0);
    const status = await json<{ counts: Record<string, number> }>(["status"]);
    assert.equal(status.counts["succeeded"], 1);
  });

  test("the database: --db comes first, then HOLDFAST_DB, then the config, then the default", async (t) => {
    const { cwd, json } = await project(t, {
      "holdfast.config.js": `export default { db: "configured.db", modules: ["jobs.js"] };`,
      "jobs.js": `export { double } from ${JSON.stringify(jobs)};`,
      "bare.mjs": `export default { modules: ["jobs.js"] };`,
    });
    const enqueue = ["enqueue", "double", "1"];
    const made = (file: string) => existsSync(join(cwd, file));
    const env = { HOLDFAST_DB: "environment.db" };
    await json([...enqueue, "--db", "given.db"], 0, env);
    assert.deepEqual([made("given.db"), made("environment.db"), made("configured.db")], [true, false, false]);
    await json(enqueue, 0, env);
    assert.deepEqual([made("environment.db"), made("configured.db")], [true, false]);
    await json(enqueue, 0, { HOLDFAST_DB: "" });
    assert.deepEqual([made("configured.db"), made(".holdfast/work.db")], [true, false]);
    await json([...enqueue, "--config", "bare.mjs"]);
    assert.equal(made(".holdfast/work.db"), true);
  });

  test("named with --config its paths count from its own folder", async (t) => {
    const { cwd, json } = await project(t, {
      "deep/other.config.mjs": `export default { db: "./deep.db", modules: ["../jobs.js"] };`,
      "jobs.js": `export { double } from ${JSON.stringify(jobs)};`,
      "holdfast.config.ts": "throw new Error('not this one')",
    });
    await json(["enqueue", "double", "1", "--config", "deep/other.config.mjs"]);
    assert.equal(existsSync(join(cwd, "deep/deep.db")), true);
    const { queues } = await json<{ queues: { name: string }[] }>(["--config", "deep/other.config.mjs", "status"]);
    assert.deepEqual(
      queues.map(({ name }) => name),
      ["sums"],
    );
  });

  test("its open options hold: the durability where a database is made, the driver and the log everywhere", async (t) => {
    const { cwd, start, json } = await project(t, {
      "holdfast.config.mjs": `
        const say = (message) => process.stderr.write("MY LOG " + message + "\\n");
        const log = { debug: say, info: say, warn: say, error: say };
        export default { db: "work.db", durability: "process", driver: "better-sqlite3", log, modules: ["jobs.js"] };`,
      "jobs.js": `export { default } from ${JSON.stringify(jobs)};`,
    });
    await json(["enqueue", "echo", '{"text":"aloud"}']);
    const worker = start(["work"]);
    await worker.said("MY LOG echo says aloud");
    worker.child.kill("SIGTERM");
    await worker.ended;
    {
      await using hf = await open(join(cwd, "work.db"));
      assert.equal(hf.engine.store.durability, "process");
    }
    await (await open(join(cwd, "other.db"), { durability: "power" })).close();
    await json(["status", "--db", "other.db"]);
    const { error } = await json<JsonError>(["enqueue", "echo", "--db", "other.db"], 2);
    assert.equal(error.code, "DURABILITY_DIFFERS");
  });

  test("without one, work says what to do, and enqueue knows the name alone", async (t) => {
    const { json } = await project(t, {});
    const { error } = await json<JsonError>(["work"], 2);
    assert.equal(error.code, "USAGE");
    assert.match(error.hint, /holdfast work jobs\.ts.*holdfast\.config\.ts.*holdfast init/);
    await json(["enqueue", "anything", "1"]);
  });
});

suite("a config that cannot be used", () => {
  const cases: [string, string, string, RegExp, RegExp][] = [
    [
      "that has no default export",
      "export const modules = [];",
      "CONFIG_INVALID",
      /default export .* is missing/,
      /export default/,
    ],
    ["that is a list", "export default ['./jobs.ts']", "CONFIG_INVALID", /default export .* is a list/, /export default/],
    ["that is a text", "export default 'jobs.ts'", "CONFIG_INVALID", /is "jobs\.ts"/, /export default/],
    ["without modules", "export default { db: 'x.db' }", "CONFIG_INVALID", /has no modules/, /modules: \["\.\/jobs\.ts"\]/],
    [
      "whose modules are no list",
      "export default { modules: './jobs.ts' }",
      "CONFIG_INVALID",
      /modules in .* is "/,
      /modules: \[/,
    ],
    [
      "whose modules are not strings",
      "export default { modules: [7] }",
      "CONFIG_INVALID",
      /modules in .* is \[7\]/,
      /modules: \[/,
    ],
    [
      "whose db is not a string",
      "export default { db: 7, modules: [] }",
      "CONFIG_INVALID",
      /db in .* is 7/,
      /path of the database/,
    ],
    [
      "with an unknown option",
      "export default { modlues: [] }",
      "OPTION_INVALID",
      /has no option "modlues"/,
      /modules, durability/,
    ],
    [
      "with a bad open option",
      "export default { modules: [], driver: 'x' }",
      "OPTION_INVALID",
      /driver must be one of .*, got "x"/,
      /node:sqlite/,
    ],
    ["that throws", "throw new Error('the moon is full')", "CONFIG_INVALID", /does not load: the moon is full/, /node holdfast/],
    ["that is no TypeScript", "export default {", "CONFIG_INVALID", /has a syntax error/, /Correct that line/],
    [
      "that imports what is not there",
      "import './no.ts'",
      "CONFIG_INVALID",
      /does not load: Cannot find module/,
      /node holdfast/,
    ],
  ];
  for (const [turn, [what, text, code, message, hint]] of cases.entries()) {
    test(`${what} is refused with ${code}, and nothing is made`, firstOf(2, turn), async (t) => {
      const { cwd, json } = await project(t, { "holdfast.config.ts": text });
      const { error } = await json<JsonError>(["enqueue", "double", "1", "--module", JOBS], 2);
      assert.equal(error.code, code, error.message);
      assert.match(error.message, message);
      assert.match(error.hint, hint);
      assert.equal(existsSync(join(cwd, ".holdfast/work.db")), false);
      assert.equal(existsSync(join(cwd, "x.db")), false);
    });
  }

  test("because it is not there, or names files that are not there, is refused", async (t) => {
    const { json } = await project(t, {
      "file.config.ts": `export default { modules: ["./missing.ts"] };`,
      "glob.config.ts": `export default { modules: ["./missing/*.ts"] };`,
      "empty.config.ts": `export default { modules: [] };`,
    });
    const errors = await Promise.all(
      ["no", "file", "glob", "empty"].map((name) => json<JsonError>(["work", "--config", `${name}.config.ts`], 2)),
    );
    assert.deepEqual(
      errors.map(({ error }) => error.code),
      ["CONFIG_INVALID", "MODULE_INVALID", "CONFIG_INVALID", "NO_HANDLER"],
    );
    assert.match(errors[0]?.error.message ?? "", /There is no file no\.config\.ts/);
    assert.match(errors[1]?.error.message ?? "", /missing\.ts/);
    assert.match(errors[2]?.error.message ?? "", /No file matches "\.\/missing\/\*\.ts"/);
    assert.match(errors[3]?.error.message ?? "", /empty\.config\.ts lists no modules/);
  });
});

suite("init", () => {
  test("writes a config and a job that run, and says what to do next", async (t) => {
    const { cwd, start, json } = await project(t, {});
    const { code, stdout } = await start(["init"]).ended;
    assert.equal(code, 0);
    assert.match(stdout, /^wrote jobs\.ts\nwrote holdfast\.config\.ts\n\nNext:\n {2}npx holdfast enqueue hello/);
    // What it says, word for word, but for the shell.
    const [, name = "", input = ""] = /holdfast enqueue (\w+) '(.*)'/.exec(stdout) ?? [];
    const { id } = await json<{ id: string }>(["enqueue", name, input]);
    const worker = start(["work"]);
    await worker.said("hello Anna");
    await using hf = await open(join(cwd, ".holdfast/work.db"));
    assert.equal((await hf.jobs.wait(id)).output, "hello Anna");
    worker.child.kill("SIGTERM");
    assert.equal((await worker.ended).code, 0);

    const elsewhere = await mkdtemp(join(place.folder, "bare-"));
    const bare = await new Running(["init", "--json"], { cwd: elsewhere }).ended;
    assert.equal((JSON.parse(bare.stdout) as { next: string[] }).next[0], "npm install holdfast", "where it is not installed");
  });

  test("writes .mts files in a CommonJS package, and they run", async (t) => {
    const { start, json } = await project(t, { "package.json": '{ "type": "commonjs" }' });
    const { created } = await json<{ created: string[] }>(["init"]);
    assert.deepEqual(created, ["jobs.mts", "holdfast.config.mts"]);
    await json(["enqueue", "hello", '{"name":"Anna"}']);
    const worker = start(["work"]);
    await worker.said("hello Anna");
    worker.child.kill("SIGTERM");
    assert.equal((await worker.ended).code, 0);
  });

  test("a .ts module in a CommonJS package does not load, and the hint names both ways out", async (t) => {
    const { json } = await project(t, {
      "package.json": '{ "type": "commonjs" }',
      "jobs.ts": 'import { job } from "holdfast";\nexport const hello = job({ name: "hello", run: () => {} });',
      "own.config.ts": "export default { modules: [] };",
    });
    for (const args of [
      ["work", "jobs.ts"],
      ["status", "--config", "own.config.ts"],
    ]) {
      const { error } = await json<JsonError>(args, 2);
      assert.match(error.hint, /^Set "type": "module" in package\.json, or name the file \.mts/, args.join(" "));
    }
  });

  test("overwrites nothing, and a second time it does nothing", async (t) => {
    const { cwd, json } = await project(t, { "jobs.ts": "// mine" });
    const first = await json<{ created: string[]; kept: string[] }>(["init"]);
    assert.deepEqual([first.created, first.kept], [["holdfast.config.ts"], ["jobs.ts"]]);
    assert.equal(await readFile(join(cwd, "jobs.ts"), "utf8"), "// mine");
    await writeFile(join(cwd, "holdfast.config.ts"), "export default { this is broken");
    const again = await json<{ created: string[]; kept: string[] }>(["init"]);
    assert.deepEqual([again.created, again.kept], [[], ["holdfast.config.ts"]]);
    assert.equal(await readFile(join(cwd, "holdfast.config.ts"), "utf8"), "export default { this is broken");

    const other = await project(t, { "holdfast.config.mjs": "export default { modules: [] }" });
    const kept = await other.json<{ created: string[]; kept: string[] }>(["init"]);
    assert.deepEqual([kept.created, kept.kept], [[], ["holdfast.config.mjs"]]);
    assert.equal(existsSync(join(other.cwd, "jobs.ts")), false);
  });
});

suite("a config in the current folder", () => {
  const CONFIG = {
    "holdfast.config.ts": `import { writeFileSync } from "node:fs";
      writeFileSync("loaded", "");
      export default { db: "own.db", modules: [] };`,
  };

  test("is not run by a command that only looks at a database named with --db", async (t) => {
    const { cwd, start } = await project(t, CONFIG);
    await (await open(join(cwd, "other.db"))).close();
    for (const command of [
      "status",
      "health",
      "metrics",
      "doctor",
      "jobs list",
      "queues list",
      "builds list",
      "audit",
      "events",
    ]) {
      const { code, stderr } = await start([...command.split(" "), "--db", "other.db"]).ended;
      assert.equal(code, 0, `${command}: ${stderr}`);
      assert.ok(!existsSync(join(cwd, "loaded")), command);
    }
    assert.equal((await start(["status", "--db", "other.db", "--config", "holdfast.config.ts"]).ended).code, 0);
    assert.ok(existsSync(join(cwd, "loaded")), "a config that is named is run");
  });

  test("is not run with --no-config", async (t) => {
    const { cwd, start } = await project(t, CONFIG);
    const { stdout } = await start(["status", "--no-config"]).ended;
    assert.ok(!existsSync(join(cwd, "loaded")), stdout);
  });

  test("is run where it may name the database", async (t) => {
    const { cwd, start } = await project(t, CONFIG);
    await start(["status"]).ended;
    assert.ok(existsSync(join(cwd, "loaded")));
  });
});
