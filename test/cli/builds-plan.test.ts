import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { Plan } from "../../src/index.ts";
import { firstOf } from "../selection.ts";
import { DOCS, openGate, placeWith, writeDoc } from "./build-place.ts";
import type { JsonError, Place } from "./holdfast.ts";

const INDEX = new URL("../../src/index.ts", import.meta.url).href;

let place: Place;
before(async () => {
  place = await placeWith({ a: "anna", b: "bert", c: "carl" });
  await openGate(place);
});
after(() => place.remove());

test("where there is no database, everything would run, and none is made", async () => {
  const plan = await place.json<Plan>(["plan", DOCS]);
  assert.deepEqual(plan.stages["parse"], { run: 3, cached: 0, unknown: 0, estimate: {}, incomplete: true });
  const summarise = { run: 0, cached: 0, unknown: 3, estimate: { usd: 0.3, tokens: 0 }, upperBound: true };
  assert.deepEqual(plan.stages["summarise"], summarise);
  const { stdout } = await place.run(["plan", DOCS]);
  assert.match(stdout, /^parse +3 +0 +0 +\?$/m);
  assert.match(stdout, /^summarise +0 +0 +3 +at most \$0\.30$/m);
  assert.match(stdout, /^total +3 +0 +4 +\$0\.30 \+ \?\n[^]*\n\?: the cost of a stage/m);
  assert.equal(existsSync(place.db), false);
});

test("plan says what would run, what is cached and what it costs, and leaves the database as it is to the byte", async () => {
  assert.equal((await place.run(["run", DOCS])).code, 0);
  const before = await readFile(place.db);
  const nothing = await place.run(["plan", DOCS]);
  assert.match(nothing.stdout, /^STAGE[^]*\ntotal +0 +7 +0 +–\nNothing would run: all results are up to date\.\n$/);

  await writeDoc(place, "a", "other");
  await writeDoc(place, "b", "others");
  await writeDoc(place, "d", "new");
  const plan = await place.json<Plan>(["plan", DOCS]);
  assert.deepEqual(plan.stages, {
    parse: { run: 3, cached: 1, unknown: 0, estimate: { usd: 0, tokens: 0 } },
    summarise: { run: 0, cached: 1, unknown: 3, estimate: { usd: 0.3, tokens: 0 }, upperBound: true },
    index: { run: 0, cached: 0, unknown: 1, estimate: { usd: 0, tokens: 0 } },
  });
  assert.deepEqual(plan.estimate, { usd: 0.3, tokens: 0 });
  const { code, stdout } = await place.run(["plan", DOCS]);
  assert.equal(code, 0);
  assert.equal(
    stdout,
    [
      "STAGE      RUN  CACHED  UNKNOWN       ESTIMATE",
      "parse        3       1        0          $0.00",
      "summarise    0       1        3  at most $0.30",
      "index        0       0        1          $0.00",
      "total        3       2        4  at most $0.30",
      "unknown: work items whose input an earlier stage must produce first.\n",
    ].join("\n"),
  );
  assert.deepEqual(await readFile(place.db), before);
  assert.equal(existsSync(`${place.db}-wal`), false);
});

test("every target that would run is in the estimate, however many are looked at at once", async () => {
  const rerun = await place.json<Plan>(["plan", DOCS, "--rerun", "summarise", "--only", "docs/c.md"]);
  const summarise = { run: 1, cached: 0, unknown: 0, estimate: { usd: 0.1, tokens: 0 }, upperBound: true };
  assert.deepEqual(rerun.stages["summarise"], summarise);
});

/** A pipeline whose one stage says this. */
function module(word: string): string {
  return `import { items, pipeline } from "${INDEX}";
    console.log("loaded");
    export default pipeline("words").source(items(() => [1], { id: String })).stage("say", {}, () => "${word}");`;
}

test("code that was edited under an unchanged version is warned of, by plan and by run", async () => {
  const file = join(place.folder, "words.ts");
  await writeFile(file, module("one"));
  assert.equal((await place.run(["run", "words.ts"])).code, 0);
  await writeFile(file, module("two"));
  const warning = /warning: The code of stage "say" was edited, and its version was not raised/;
  assert.match((await place.run(["plan", "words.ts"])).stdout, warning);
  assert.match((await place.run(["run", "words.ts"])).stdout, warning);
  await writeFile(file, module("three"));
  const { stdout, stderr } = await place.run(["run", "words.ts", "--json"]);
  assert.match(stderr, warning);
  // What a module logs is not among it, either.
  assert.match(stderr, /^loaded\n/);
  for (const line of stdout.trimEnd().split("\n")) JSON.parse(line);
});

test("a name stands for a pipeline of the config's modules", async () => {
  const config = join(place.folder, "other.config.ts");
  await writeFile(config, `export default { modules: [${JSON.stringify(DOCS)}, "./words.ts"] };`);
  const plan = await place.json<Plan>(["plan", "words", "--config", config]);
  assert.deepEqual(Object.keys(plan.stages), ["say"]);
  const { error } = await place.json<JsonError>(["run", "wrods", "--config", config], 2);
  assert.match(error.message, /No module of .*other\.config\.ts exports a pipeline "wrods"/);
  assert.equal(error.hint, 'Did you mean "words"? Pipelines: docs, words.');
});

const HEAD = `import { files, pipeline } from "${INDEX}"; const p = pipeline("p").source(files("docs/*.md"));`;
const BAD: [what: string, text: string, code: string, message: RegExp][] = [
  ["has no default export", `${HEAD} export const docs = p;`, "MODULE_INVALID", /bad\S*\.ts has no default export/],
  ["exports something else", "export default 4;", "MODULE_INVALID", /default export that is not a pipeline/],
  ["throws at import", 'throw new Error("boom");', "MODULE_INVALID", /^bad\S*\.ts:1 does not load: boom/],
  ["throws something odd", "throw null;", "MODULE_INVALID", /does not load: null/],
  ["is no TypeScript", "// first line\nexport default ][;", "MODULE_INVALID", /^bad\S*\.ts:2 has a syntax error: /],
  ["has an enum", "// first line\nenum A { B }", "MODULE_INVALID", /^bad\S*\.ts:2 cannot be run as it is: .*enum/],
  [
    "has a stage without options",
    `${HEAD} export default p.stage("a", () => 1);`,
    "OPTION_INVALID",
    /options of stage "a" are missing/,
  ],
  [
    "has a stage twice",
    `${HEAD} export default p.stage("a", {}, () => 1).stage("a", {}, () => 2);`,
    "STAGE_TWICE",
    /Pipeline "p" has a stage "a" already/,
  ],
  ["uses an unknown stage", `${HEAD} export default p.stage("a", { uses: ["z"] }, () => 1);`, "STAGE_UNKNOWN", /uses "z"/],
  ["has a bad option", `${HEAD} export default p.stage("a", { tiemout: 4 }, () => 1);`, "OPTION_INVALID", /tiemout/],
];

for (const [turn, [what, text, code, message]] of BAD.entries()) {
  test(`a pipeline whose module ${what} is refused with exit 2, and no database is made`, firstOf(2, turn), async () => {
    const name = `bad-${what.replaceAll(" ", "-")}.ts`;
    await writeFile(join(place.folder, name), text);
    const db = join(place.folder, `${name}.db`);
    const { error } = await place.json<JsonError>(["run", name, "--db", db], 2);
    assert.equal(error.code, code);
    assert.match(error.message, message);
    assert.ok(error.hint.length > 0);
    assert.equal(existsSync(db), false);
  });
}

test("a syntax error in JavaScript, and in a module that is imported, names file and line", async () => {
  await writeFile(join(place.folder, "broken.js"), "export const a = 1;\n\nconst b = ;\n");
  await writeFile(join(place.folder, "broken.ts"), "export const a = 1;\nconst b = ;\n");
  await writeFile(join(place.folder, "importing.ts"), 'import "./broken.ts";\n');
  const cases = {
    "broken.js": /^broken\.js:3 has a syntax error: Unexpected/,
    "importing.ts": /^broken\.ts:2 has a syntax error: /,
  };
  for (const [file, message] of Object.entries(cases)) {
    for (const command of ["run", "work"]) {
      const { error } = await place.json<JsonError>([command, file], 2);
      assert.match(error.message, message);
    }
  }
});

test("a module that throws, or imports what is missing, is refused with file and line by each command that loads it", async () => {
  const cases: [text: string, message: RegExp][] = [
    ["const a = 1;\nthrow new Error('boom');", /^faulty\.ts:2 does not load: boom$/],
    ["const a = 1;\njobb({});", /^faulty\.ts:2 does not load: jobb is not defined$/],
    ["const a = 1;\nJSON.parse('{oops');", /^faulty\.ts:2 does not load: .*JSON/],
    ["const a = 1;\nimport './gone.ts';", /^faulty\.ts:2 does not load: Cannot find module/],
    ["const a = 1;\nimport b from 'no-such-package';", /^faulty\.ts:2 does not load: Cannot find package/],
    [`import { job } from "${INDEX}";\njob({ name: "a", retry: 5, run() {} });`, /^faulty\.ts:2 does not load: retry of job "a"/],
    ["throw 'odd';", /^faulty\.ts does not load: odd$/],
  ];
  const commands = [
    ["enqueue", "a", "--module", "faulty.ts"],
    ["work", "faulty.ts"],
    ["plan", "faulty.ts"],
  ];
  for (const [turn, [text, message]] of cases.entries()) {
    await writeFile(join(place.folder, "faulty.ts"), text);
    const { error } = await place.json<JsonError>(commands[turn % 3] as string[], 2);
    assert.match(error.message, message);
    assert.ok(!("stack" in error) && error.hint.length > 0);
  }
});

test("a module that cannot find the package is answered with how to install it", async () => {
  await writeFile(
    join(place.folder, "lonely.ts"),
    'import { job } from "holdfast";\nexport const a = job({ name: "a", run() {} });',
  );
  for (const args of [
    ["work", "lonely.ts"],
    ["enqueue", "a", "--module", "lonely.ts"],
    ["run", "lonely.ts"],
  ]) {
    const { error } = await place.json<JsonError>(args, 2);
    assert.match(error.message, /^lonely\.ts:1 does not load: Cannot find package 'holdfast'/);
    assert.match(error.hint, /`npm install holdfast`/);
  }
  const { error } = await place.json<JsonError>(["work", "--config", "lonely.ts"], 2);
  assert.deepEqual([error.code, /`npm install holdfast`/.test(error.hint)], ["CONFIG_INVALID", true]);
});

test("a pipeline that is named without its ending is suggested with it", async () => {
  await writeFile(join(place.folder, "notes.ts"), "export default 1;");
  const { error } = await place.json<JsonError>(["run", "notes"], 2);
  assert.match(error.hint, /^Did you mean notes\.ts\?/);
});

test("a file that is not there, a stage that is not there, and no config are wrong usage, and make no database", async () => {
  const db = join(place.folder, "none.db");
  const cases: [string[], RegExp][] = [
    [["run", "nowhere.ts"], /There is no file nowhere\.ts/],
    [["plan", "nowhere"], /There is no file nowhere, and this folder has no config/],
    [["run", DOCS, "--rerun", "prase"], /Pipeline "docs" has no stage "prase".*\nhint: +Did you mean "parse"\?/],
    [["plan", DOCS, "--only", "prase"], /"prase" in `only` is no target and no stage .* Did you mean "parse"\?/],
    [["plan", DOCS, "--only", "docs/zz.md"], /"docs\/zz\.md" in `only` is no target and no stage .* Did you mean "docs\/.\.md"/],
  ];
  for (const [args, message] of cases) {
    const { code, stderr } = await place.run([...args, "--db", db]);
    assert.equal(code, 2);
    assert.match(stderr, message);
  }
  assert.equal(existsSync(db), false);
});

test("plan and run say which files of the source are databases and are skipped", async (t) => {
  const there = await placeWith({ a: "anna" });
  t.after(() => there.remove());
  await openGate(there);
  await writeFile(join(there.folder, "docs", "queue.md"), "");
  await writeFile(join(there.folder, "docs", "queue.md-wal"), "");
  const skipped = /Skipped docs\/queue\.md: it is a database, since queue\.md-wal is beside it\./;
  const plan = await there.json<Plan>(["plan", DOCS]);
  assert.equal(plan.stages["parse"]?.run, 1);
  assert.match(plan.warnings.join("\n"), skipped);
  assert.match((await there.run(["plan", DOCS])).stdout, skipped);
  const { code, stdout, stderr } = await there.run(["run", DOCS]);
  assert.equal(code, 0, stdout + stderr);
  assert.match(stderr, skipped);
});
