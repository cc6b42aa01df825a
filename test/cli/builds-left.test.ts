import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import type { Build } from "../../src/index.ts";
import { DOCS, newest, openGate, placeWith } from "./build-place.ts";
import type { Place, Running } from "./holdfast.ts";

/** A run whose second document waits at the gate. */
async function held(t: TestContext): Promise<{ place: Place; run: Running }> {
  const place = await placeWith({ a: "anna", b: "slow bert" });
  t.after(() => place.remove());
  const run = place.start(["run", DOCS, "--concurrency", "1"]);
  await run.said("holding");
  return { place, run };
}

test("a build that Ctrl-C has stopped is listed as stopped, and to programs as CRASHED for that reason", async (t) => {
  const { place, run } = await held(t);
  run.child.kill("SIGINT");
  await openGate(place);
  const ended = await run.ended;
  assert.equal(ended.code, 130);
  assert.match(ended.stdout, /\nstopped docs build b\w+ · /);
  for (const command of [["builds"], ["status"]]) {
    const { stdout } = await place.run(command);
    assert.match(stdout, /^b\w+ +docs +stopped /m, command[0]);
    assert.doesNotMatch(stdout, /CRASHED/);
  }
  const { items } = await place.json<{ items: Build[] }>(["builds"]);
  assert.deepEqual([items[0]?.state, items[0]?.reason], ["CRASHED", "stopped"]);
  const { stdout } = await place.run(["builds", "show", items[0]?.id as string]);
  assert.match(stdout, /^stopped docs build /);
});

test("after its orchestrator was killed, a build is not listed as ACTIVE without saying that", async (t) => {
  const { place, run } = await held(t);
  run.child.kill("SIGKILL");
  await run.ended;
  const { stdout } = await place.run(["builds"]);
  const [, id] = /^(b\w+) +docs +ACTIVE /m.exec(stdout) as unknown as [string, string];
  assert.match(
    stdout,
    new RegExp(`\\n${id} is ACTIVE, but its orchestrator is dead: holdfast builds resume ${id} --file FILE\\n`),
  );
  assert.match((await place.run(["builds", "show", id])).stdout, /\norchestrator +pid \d+ on .*: the process is dead\n/);
  const { items } = await place.json<{ items: (Build & { orchestrator?: string })[] }>(["builds"]);
  assert.deepEqual([items[0]?.state, items[0]?.orchestrator], ["ACTIVE", "dead"]);
});

test("a target that killed three orchestrators: `run` does not run it again, `builds resume` does", async (t) => {
  const place = await placeWith({});
  t.after(() => place.remove());
  const text = `import { existsSync } from "node:fs";
import { items, pipeline } from ${JSON.stringify(new URL("../../src/index.ts", import.meta.url).href)};
export default pipeline("docs").source(items(() => ["a", "b"], { id: (id) => id })).stage("say", {}, ({ input }) => {
  if (input === "a" && !existsSync("mended")) process.kill(process.pid, "SIGKILL");
  return input;
});`;
  await writeFile(join(place.folder, "killer.ts"), text);
  const dies = async () => {
    const run = place.start(["run", "killer.ts"]);
    const { stdout, stderr } = await run.ended;
    assert.equal(run.child.signalCode, "SIGKILL", stdout + stderr);
  };
  for (let death = 0; death < 3; death++) await dies();
  const ended = await place.run(["run", "killer.ts"]);
  assert.equal(ended.code, 1, ended.stdout);
  assert.match(ended.stdout, /FAILED docs build/);

  for (let death = 0; death < 3; death++) await dies();
  assert.match((await place.run(["recover"])).stdout, /quarantined 1 of these/);
  await writeFile(join(place.folder, "mended"), "");
  const { id } = await newest(place);
  const resumed = await place.run(["builds", "resume", id, "--file", "killer.ts"]);
  assert.match(resumed.stdout, /SUCCESS docs build/, resumed.stderr);
});

test("while its orchestrator lives, nothing is said of it", async (t) => {
  const { place } = await held(t);
  assert.doesNotMatch((await place.run(["builds"])).stdout, /orchestrator/);
});

test("a worker that is refused its jobs leaves no registered process behind", async (t) => {
  const place = await placeWith({});
  t.after(() => place.remove());
  const text = `import { job } from ${JSON.stringify(new URL("../../src/index.ts", import.meta.url).href)};
export default job({ name: "hello", run: () => {} });`;
  for (const name of ["one.ts", "two.ts"]) await writeFile(join(place.folder, name), text);
  const refused = await place.run(["work", "one.ts", "two.ts"]);
  assert.equal(refused.code, 2, refused.stderr);
  assert.match(refused.stderr, /JOB_TWICE/);
  const { processes } = await place.json<{ processes: unknown[] }>(["status"]);
  assert.deepEqual(processes, []);
  assert.match((await place.run(["recover", "--dry-run"])).stdout, /Nothing to recover/);
});
