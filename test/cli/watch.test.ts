import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { after, before, test } from "node:test";
import { stripVTControlCharacters } from "node:util";
import { fileURLToPath } from "node:url";
import type { Overview } from "../../src/operator/overview.ts";
import { type Holdfast, job, open } from "../../src/index.ts";
import { Place } from "./holdfast.ts";

let place: Place;
let hf: Holdfast;
before(async () => {
  place = await Place.make();
  hf = await open(place.db, { program: "producer" });
});
after(async () => {
  await hf.close();
  await place.remove();
});

const tick = job({ name: "tick", run: () => {} });
type Line = Overview & { alarms: { code: string; grave: boolean; message: string }[]; rates?: Record<string, number> };

test("a process that only enqueues does not count as a worker", async () => {
  await hf.enqueue(tick, 1);
  const health = await place.json<{ ok: boolean; reasons: { code: string; message: string }[] }>(["health"], 1);
  assert.deepEqual(
    health.reasons.map(({ code, message }) => [code, message]),
    [["NO_WORKER", "1 job is pending and no worker runs"]],
  );
  const status = await place.json<Line>(["status"]);
  assert.deepEqual(
    status.processes.map(({ program, works }) => [program, works]),
    [["producer", []]],
  );
  assert.deepEqual(status.unworked, [{ name: "tick", version: 1, pending: 1 }]);
});

test("names and versions that no worker runs are alarms while others are worked on, and health is well", async () => {
  const worker = hf.work([tick]);
  await hf.jobs.wait(await hf.enqueue(tick, 1));
  await hf.enqueueMany(job({ name: "tick", version: 2, queue: "other", run: () => {} }), [1, 2]);
  const names = ["a", "b", "c", "d", "e"];
  for (const name of names) await hf.enqueue(job({ name, run: () => {} }), 1);
  const { alarms } = await place.json<Line>(["status"]);
  assert.deepEqual(
    alarms.map(({ code, grave, message }) => [code, grave, message]),
    [
      "no worker runs tick v2 (2 pending)",
      "no worker runs a (1 pending)",
      "no worker runs b (1 pending)",
      "no worker runs c (1 pending)",
      "no worker runs 2 other names (2 pending)",
    ].map((message) => ["NAME_NOT_WORKED", false, message]),
  );
  const { code, stdout } = await place.run(["health"]);
  assert.deepEqual([code, stdout], [0, "ok: 7 pending, 0 running, 1 worker\n"]);
  await worker.stop();
});

test("a claim by hand counts as a worker", async () => {
  const claim = await hf.claim("a", { worker: "anna" });
  assert.equal((await place.run(["health"])).code, 0);
  await claim?.release();
  assert.equal((await place.run(["health"])).code, 1);
});

test("a queue of which a worker that is gone has ended a job in the last minute is not healthy", async () => {
  const gone = job({ name: "gone", run: () => {} });
  const worker = hf.work([gone]);
  await hf.jobs.wait(await hf.enqueue(gone, 1));
  await worker.stop();
  const { id } = await hf.enqueue(gone, 2);
  const { reasons } = await place.json<{ reasons: { code: string }[] }>(["health"], 1);
  assert.deepEqual(
    reasons.map(({ code }) => code),
    ["NO_WORKER"],
  );
  await hf.jobs.cancel(id);
});

test("a queue of which a script has settled a job in the last minute is healthy between two claims", async () => {
  const { claim } = await place.json<{ claim: string }>(["claim", "a", "--worker", "anna"]);
  await place.json(["settle", claim, "--succeed"]);
  await hf.enqueue(job({ name: "a", run: () => {} }), 2);
  const { code, stdout } = await place.run(["health"]);
  assert.deepEqual([code, stdout], [0, "ok: 7 pending, 0 running, 0 workers\n"]);
  const { alarms } = await place.json<Line>(["status"]);
  assert.ok(alarms.every(({ grave }) => !grave) && alarms.some(({ message }) => message === "no worker runs a (1 pending)"));
});

test("status --watch --json prints a line for each look, with the rates between them, until a signal", async () => {
  const watching = place.start(["status", "--watch", "100ms", "--json"]);
  await watching.said("\n");
  const worker = hf.work([tick]);
  const ids = await hf.enqueueMany(tick, Array.from({ length: 50 }));
  await Promise.all(ids.map((one) => hf.jobs.wait(one)));
  await worker.stop();
  // However the looks fell, one of them saw it, and one the end of it.
  await watching.said(/"ended":5\d,/);
  await watching.said(/"rates":\{[^}]*"tick":(?!0[,}])[\d.e-]+/);
  watching.child.kill("SIGINT");
  const { code, stdout } = await watching.ended;
  assert.equal(code, 0);
  const lines = stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Line);
  assert.equal(lines[0]?.rates, undefined);
  assert.ok((lines.at(-1)?.queues.find(({ name }) => name === "tick")?.ended ?? 0) >= 50);
});

test("in a pipe status --watch writes one block after the other, and ends when its output is closed", async () => {
  const watching = place.start(["status", "--watch", "100ms"]);
  await watching.said("done/s");
  watching.child.stdout?.destroy();
  const { code, stdout } = await watching.ended;
  assert.equal(code, 0);
  assert.match(stdout, /done\/min[^]*\n\n\S*work\.db {2}.* done\/s · /);
  assert.ok(!stdout.includes("\u001b"));
});

// script, of util-linux, makes a terminal.
const noTerminal = /util-linux/.test(spawnSync("script", ["--version"], { encoding: "utf8" }).stdout ?? "")
  ? false
  : "there is no script command here";

type Watched = { seen: string; code: number };

/** Everything that was drawn, until Ctrl-C after the second look, and the exit code. No shell is left that Ctrl-C could end. */
async function watchedIn(size: { cols: number; rows: number }): Promise<Watched> {
  const bin = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
  const stty = `stty cols ${size.cols} rows ${size.rows}`;
  const command = `${stty}; exec '${process.execPath}' '${bin}' status --watch 100ms`;
  const { NO_COLOR: _, ...env } = process.env;
  const child = spawn("script", ["-qec", command, "/dev/null"], {
    cwd: place.folder,
    env: { ...env, HOLDFAST_DB: place.db, TERM: "xterm" },
  });
  let seen = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (seen += text));
  while (!/done\/s/.test(seen)) await new Promise((resolve) => child.stdout.once("data", resolve));
  child.stdin.write("\u0003");
  const code = await new Promise<number>((resolve) => child.on("close", resolve));
  return { seen, code };
}

/** The first that was drawn, without ages: later ones differ in their rates. */
function pageOf(seen: string): string {
  return seen.slice(seen.indexOf("\u001b[H"), seen.indexOf("Ctrl-C ends")).replaceAll(/\d+[smh]\b/g, "");
}

test("a terminal without a size gets the whole page, 80 columns wide", { skip: noTerminal }, async () => {
  const sizes = [
    { cols: 0, rows: 0 },
    { cols: 80, rows: 500 },
  ];
  const [unknown, large] = (await Promise.all(sizes.map(watchedIn))) as [Watched, Watched];
  assert.doesNotMatch(unknown.seen, /more lines/);
  assert.equal(pageOf(unknown.seen), pageOf(large.seen));
});

test("in a terminal status --watch draws in place, and Ctrl-C gives it back and exits 0", { skip: noTerminal }, async () => {
  const { seen, code } = await watchedIn({ cols: 80, rows: 24 });
  const escape = "\u001b[";
  assert.ok(seen.startsWith(`${escape}?1049h${escape}?25l${escape}?7l${escape}H`), JSON.stringify(seen.slice(0, 80)));
  assert.match(seen, /Ctrl-C ends/);
  const explained = stripVTControlCharacters(seen)
    .split(/\r*\n/)
    .filter((line) => line.includes("No live"));
  assert.ok(explained.length > 0 && explained.every((line) => line.length <= 80), explained.join("\n"));
  assert.equal(code, 0, seen.slice(-200));
  assert.ok(seen.includes(`${escape}?7h${escape}?25h${escape}?1049l`), "the cursor and the screen are back");
});

test("an unreadable interval is refused", async () => {
  assert.equal((await place.run(["status", "--watch", "1ms"])).code, 2);
  assert.equal((await place.run(["status", "--watch", "often"])).code, 2);
});
