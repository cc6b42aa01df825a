import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { pipelineOf } from "../../src/core/pipelines/pipeline.ts";
import { loadedFrom, programHash } from "../../src/pipelines/model.ts";
import { DOCS, linesOf, newest, openGate, placeWith, shutGate, writeDoc } from "./build-place.ts";
import type { Place } from "./holdfast.ts";

let place: Place;
before(async () => (place = await placeWith({ a: "anna", b: "bert", c: "carl" })));
after(() => place.remove());

test("run builds a pipeline, with lines in a pipe and a table that lines up, and exits 0", async () => {
  const { code, stdout, stderr } = await place.run(["run", DOCS], { env: { FORCE_COLOR: undefined } });
  assert.equal(code, 0, stderr);
  assert.ok(!stdout.includes("\u001b"));
  assert.match(
    stdout,
    /^parse 0 done[^]*\nSUCCESS docs build b\w+ · all targets are done · \d+s · \$0\.30 of \$1\.00\nSTAGE {6}DONE {2}CACHED {2}FAILED {2}LEFT\nparse {9}3 {7}0 {7}0 {5}0\nsummarise {5}3 {7}0 {7}0 {5}0\nindex {9}1 {7}0 {7}0 {5}0\nholdfast builds export b\w+ DIR/,
  );
});

test("what has not changed is not done again, and with --json there is nothing but JSON", async () => {
  await writeDoc(place, "b", "berta");
  const { code, stdout } = await place.run(["run", DOCS, "--json"]);
  assert.equal(code, 0);
  const lines = linesOf(stdout);
  assert.deepEqual(new Set(lines.map(({ type }) => type)), new Set(["progress", "build"]));
  const last = lines.at(-1);
  assert.deepEqual([last?.type, last?.state, last?.spent.usd], ["build", "SUCCESS", 0.1]);
  assert.deepEqual(last?.stages["parse"], { ran: 1, cached: 2, failed: 0, left: 0 });
});

test("--rerun makes a stage's results anew, --only leaves the others alone", async () => {
  const { stdout } = await place.run(["run", DOCS, "--rerun", "parse", "--only", "docs/a.md", "--json"]);
  const last = linesOf(stdout).at(-1);
  assert.deepEqual(last?.stages["parse"], { ran: 1, cached: 0, failed: 0, left: 0 });
  assert.deepEqual(last?.stages["summarise"], { ran: 0, cached: 1, failed: 0, left: 0 });
});

test("a failed target is named, its siblings are done, and the exit code is 1", async () => {
  await writeDoc(place, "d", "bad news");
  const { code, stdout } = await place.run(["run", DOCS]);
  assert.equal(code, 1);
  assert.match(stdout, /\nFAILED docs build b\w+ · targets failed/);
  assert.match(stdout, /\nfailed summarise docs\/d\.md: this one is bad\nholdfast run \S+ runs the failed targets again/);
  await writeDoc(place, "d", "dora");
});

test("of two at once one runs, and the other exits 4 and names who does", async () => {
  await writeDoc(place, "b", "slow bert");
  const first = place.start(["run", DOCS, "--concurrency", "1"]);
  await first.said("holding");
  const second = await place.run(["run", DOCS]);
  assert.equal(second.code, 4);
  assert.match(second.stderr, new RegExp(`is run by process ${first.child.pid} on .*holdfast run .*\\[LOCK_CONFLICT\\]`));
  const { default: docs } = await import(pathToFileURL(DOCS).href);
  loadedFrom(docs, DOCS);
  const hash = await programHash(pipelineOf(docs));
  assert.match(second.stderr, new RegExp(`program hash ${hash.slice(0, 12)}\\)`));
  const { builds } = await place.json<{ builds: { lead: { programHash: string } }[] }>(["status"]);
  assert.equal(builds.at(-1)?.lead.programHash, hash);
  const audit = await place.run(["audit", "--json"]);
  const started = audit.stdout.split("\n").findLast((line) => line.includes('"build.started"')) as string;
  assert.equal(JSON.parse(started).after.programHash, hash);

  const status = await place.run(["status"]);
  assert.match(status.stdout, new RegExp(`\nb\\w+ +docs +ACTIVE .* pid ${first.child.pid} on `));
  const held = await place.run(["unlock", "docs"]);
  assert.equal(held.code, 4);
  assert.match(held.stderr, new RegExp(`is run by pid ${first.child.pid} .*, which lives`));

  first.child.kill("SIGINT");
  await first.said("Stopping: running attempts have 10s to finish");
  await openGate(place);
  const { code, stdout } = await first.ended;
  assert.equal(code, 130);
  assert.match(stdout, /\nstopped docs build b\w+ · stopped .*[^]*continues the build\.\n$/);
});

test("after Ctrl-C the next run resumes the build to its end, and nothing is paid twice", async () => {
  const left = await newest(place);
  assert.equal(left.state, "CRASHED");
  const other = await place.run(["run", DOCS, "--rerun", "parse"]);
  assert.equal(other.code, 2);
  assert.match(other.stderr, /was started with another `rerun`, which cannot change on resume\..*\nhint: .*--fresh abandons it/);

  const { code, stdout } = await place.run(["run", DOCS]);
  assert.equal(code, 0);
  assert.match(stdout, new RegExp(`^Resuming build ${left.id}\\.\n`));
  const done = await newest(place);
  assert.deepEqual([done.id, done.state, done.spent.usd], [left.id, "SUCCESS", 0.2]);
});

test("a second Ctrl-C exits at once, and the next run resumes that build, too", async () => {
  await shutGate(place);
  await writeDoc(place, "b", "slow berta");
  const run = place.start(["run", DOCS]);
  await run.said("holding");
  run.child.kill("SIGINT");
  await run.said("Stopping");
  run.child.kill("SIGINT");
  assert.equal((await run.ended).code, 130);
  await openGate(place);
  const { code, stdout } = await place.run(["run", DOCS]);
  assert.equal(code, 0);
  assert.match(stdout, /^Resuming build/);
});

test("a pipeline that was changed under an interrupted build is refused with the differences; --fresh starts anew", async () => {
  await shutGate(place);
  await writeDoc(place, "b", "slow bertram");
  const run = place.start(["run", DOCS]);
  await run.said("holding");
  run.child.kill("SIGKILL");
  await run.ended;
  await openGate(place);
  const changed = await place.run(["run", DOCS], { env: { PARSER: "2" } });
  assert.equal(changed.code, 2);
  assert.match(changed.stderr, /\[PIPELINE_CHANGED\]\nhint: {2}holdfast run \S+ --fresh abandons it and starts a new build/);
  assert.match(changed.stderr, /version.*is 2, it was 1/);
  const { code, stdout } = await place.run(["run", DOCS, "--fresh", "--json"], { env: { PARSER: "2" } });
  assert.equal(code, 0);
  const last = linesOf(stdout).at(-1);
  assert.equal(last?.stages["parse"]?.ran, 4);
  // The same texts come out of the new parser.
  assert.deepEqual(last?.stages["summarise"], { ran: 1, cached: 3, failed: 0, left: 0 });
});
