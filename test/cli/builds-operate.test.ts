import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import type { Build, Why } from "../../src/index.ts";
import { DOCS, newest, openGate, placeWith, shutGate, writeDoc } from "./build-place.ts";
import type { JsonError, Place } from "./holdfast.ts";

let place: Place;
before(async () => {
  place = await placeWith({ a: "anna", b: "bert" });
  await openGate(place);
});
after(() => place.remove());

test("builds list and show what there is, and an unknown one is said to be unknown", async () => {
  const empty = await place.run(["builds"]);
  assert.equal(empty.code, 2);
  assert.equal((await place.run(["run", DOCS])).code, 0);
  await writeDoc(place, "a", "other");
  assert.equal((await place.run(["run", DOCS])).code, 0);
  const { stdout } = await place.run(["builds"]);
  assert.match(stdout, /^ID +PIPELINE +STATE +DONE +CACHED +FAILED +LEFT +SPENT +AGE +REASON\n/);
  assert.equal(stdout.trimEnd().split("\n").length, 3);
  const page = await place.json<{ items: Build[] }>(["builds", "list", "--state", "FAILED", "--pipeline", "docs"]);
  assert.deepEqual(page.items, []);
  const { id } = await newest(place);
  const show = await place.run(["builds", "show", id]);
  assert.match(show.stdout, /^SUCCESS docs build b\w+ · all targets are done[^]*\nparse +1 +1 +0 +0\n[^]*build\.succeeded/);
  const { error } = await place.json<JsonError>(["builds", "show", "b0000000000000000"], 1);
  assert.equal(error.code, "NO_SUCH_BUILD");
});

test("builds why says which part has changed", async () => {
  const { id } = await newest(place);
  const why = await place.json<Why>(["builds", "why", id, "parse", "docs/a.md"]);
  assert.deepEqual([why.ran, why.parts.map(({ part }) => part)], [true, ["target.hash"]]);
  const { stdout } = await place.run(["builds", "why", id, "parse", "docs/b.md"]);
  assert.equal(stdout, "Reused: version, key, input and target are unchanged.\n");
  const stage = await place.json<JsonError>(["builds", "why", id, "prase", "docs/b.md"], 1);
  assert.match(stage.error.hint, /^Did you mean stage "parse"\? Stages: /);
  const target = await place.json<JsonError>(["builds", "why", id, "parse", "doc/b.md"], 1);
  assert.match(target.error.hint, /^Did you mean "docs\/b\.md"/);
});

test("builds export writes a folder, artifacts get reads bytes, and sweep removes only unreferenced artifacts", async () => {
  const large = "x".repeat(20_000);
  await writeDoc(place, "large", large);
  assert.equal((await place.run(["run", DOCS])).code, 0);
  const { id } = await newest(place);
  const { path } = await place.json<{ path: string }>(["builds", "export", id, "out", "--stage", "parse"]);
  assert.equal(path, join(place.folder, "out"));
  const sums = await readFile(join(path, "checksums.txt"), "utf8");
  assert.match(sums, / {2}parse\/docs\/large\.md\.json\n/);
  assert.equal((await place.json<JsonError>(["builds", "export", id, "out"], 2)).error.code, "EXPORT_EXISTS");

  const hash = /^(\w+) {2}parse\/docs\/large\.md/m.exec(sums)?.[1] as string;
  const got = await place.run(["artifacts", "get", hash]);
  assert.equal(got.stdout, JSON.stringify(large));
  assert.equal((await place.run(["artifacts", "get", hash, "--out", "index.json"])).code, 0);
  assert.equal(await readFile(join(place.folder, "index.json"), "utf8"), JSON.stringify(large));
  assert.equal((await place.run(["artifacts", "get", hash, "--out", "index.json"])).code, 2);
  assert.equal(
    (await place.json<JsonError>(["artifacts", "get", "nothing", "--out", "x"], 2)).error.code,
    "ARTIFACT_HASH_INVALID",
  );
  assert.equal(existsSync(join(place.folder, "x")), false);
  assert.equal((await place.json<{ removed: number }>(["artifacts", "sweep"])).removed, 0);

  const unreferenced = join(`${place.db}-artifacts`, "ab");
  await mkdir(unreferenced, { recursive: true });
  await writeFile(join(unreferenced, "c".repeat(62)), "not needed here");
  const sweep = ["artifacts", "sweep", "--older-than", "0ms"];
  assert.deepEqual(
    await place.json<{ removed: number; bytes: number }>(sweep).then(({ removed, bytes }) => [removed, bytes]),
    [1, 15],
  );
  assert.equal((await place.json<{ removed: number }>(sweep)).removed, 0);
  const { stdout } = await place.run(["audit", "--subject", `artifacts:${place.db}-artifacts`, "--json"]);
  const entries = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as { action: string; by: string; after: unknown });
  assert.deepEqual(
    entries.map(({ action, after }) => [action, after]),
    [["artifacts.swept", { removed: 1, bytes: 15, olderThan: 0 }]],
    "one that removed something is written down",
  );
  assert.match(entries[0]?.by ?? "", /^holdfast artifacts sweep \(pid \d+ on .*, by /);
});

test("unlock refuses while the leader lives unless it is forced, and that is in the audit", async () => {
  await shutGate(place);
  await writeDoc(place, "b", "slow bert");
  const run = place.start(["run", DOCS]);
  await run.said("holding");
  assert.equal((await place.run(["unlock", "docs"])).code, 4);
  assert.match((await place.run(["unlock"])).stdout, new RegExp(`docs +pid ${run.child.pid} on .* alive\n`));
  const unlocked = await place.json<{ forced: boolean; pid: number }>(["unlock", "docs", "--force"]);
  assert.deepEqual([unlocked.forced, unlocked.pid], [true, run.child.pid]);
  await openGate(place);
  const { code } = await run.ended;
  assert.equal(code, 1);
  const { state, reason } = await newest(place);
  assert.equal(state, "CRASHED");
  assert.match(reason, /the lock was broken by holdfast unlock/);
  assert.match((await place.run(["audit", "--subject", "lead:docs"])).stdout, /lead\.broken +lead:docs +holdfast unlock/);
});

test("builds resume continues the build, by its file; with none it says what is missing", async () => {
  const { id } = await newest(place);
  const { error } = await place.json<JsonError>(["builds", "resume", id], 2);
  assert.match(error.message, /belongs to pipeline "docs", which no config in this folder defines/);
  const { code, stdout } = await place.run(["builds", "resume", id, "--file", DOCS]);
  assert.equal(code, 0);
  assert.match(stdout, new RegExp(`SUCCESS docs build ${id}`));
  assert.equal((await place.run(["builds", "resume", id, "--file", DOCS])).code, 1);
});

test("a dead leader's lead goes without force, and its build can be abandoned", async () => {
  await shutGate(place);
  await writeDoc(place, "b", "slow berta");
  const run = place.start(["run", DOCS]);
  await run.said("holding");
  run.child.kill("SIGKILL");
  await run.ended;
  const { stdout } = await place.run(["status"]);
  assert.match(stdout, new RegExp(`ACTIVE .* pid ${run.child.pid} on \\S+, which is dead\n`));
  assert.match(stdout, /! a build of docs was interrupted and waits for its next run +→ holdfast builds resume/);
  assert.doesNotMatch(stdout, /holdfast work FILES/, "a worker does not continue the build");
  const unlocked = await place.json<{ forced: boolean }>(["unlock", "docs"]);
  assert.equal(unlocked.forced, false);
  const { id } = await newest(place);
  assert.equal((await place.run(["builds", "abandon", id])).code, 2);
  const build = await place.json<Build>(["builds", "abandon", id, "--reason", "wrong prompt"]);
  assert.deepEqual([build.state, build.reason], ["ABANDONED", "wrong prompt"]);
  const { error } = await place.json<JsonError>(["unlock", "docs"], 1);
  assert.equal(error.code, "NO_SUCH_LOCK");
});
