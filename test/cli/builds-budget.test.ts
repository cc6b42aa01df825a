import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import type { Build } from "../../src/index.ts";
import { selectFrom } from "../selection.ts";
import { DOCS, linesOf, newest, openGate, placeWith, writeDoc } from "./build-place.ts";
import type { JsonError, Place } from "./holdfast.ts";

let place: Place;
before(async () => {
  place = await placeWith({ a: "anna", b: "bert", c: "carl", d: "dora" });
  await openGate(place);
});
after(() => place.remove());

let token = "";

test("a build that would cost more than its budget pauses: exit code 3, and what to do", async () => {
  const { code, stdout } = await place.run(["run", DOCS, "--budget", "0.2"]);
  assert.equal(code, 3);
  assert.match(
    stdout,
    /\nBUDGET_PAUSE docs build b\w+ · the next attempt would exceed the budget · \d+s · \$0\.20 of \$0\.20\nSTAGE/,
  );
  assert.match(
    stdout,
    /is paused at its budget: \$0\.20 of \$0\.20 spent, and the next work item is estimated at \$0\.10\. The whole build is estimated to cost \$0\.40\./,
  );
  assert.match(
    stdout,
    /To continue, approve a new total of at least \$0\.30:\n {2}holdfast run \S+ --token hft_\S+ --budget …\n/,
  );
  token = /--token (hft_\S+)/.exec(stdout)?.[1] ?? "";
});

test("until then every run exits 3 and does nothing, and status says so", async () => {
  const paused = await newest(place);
  const { code, stdout } = await place.run(["run", DOCS, "--json"]);
  assert.equal(code, 3);
  assert.deepEqual(linesOf(stdout), [{ type: "build", ...paused }]);
  // Nor does a fresh start walk past it.
  assert.equal((await place.run(["run", DOCS, "--fresh"])).code, 3);
  const status = await place.json<{ builds: { state: string; left: number }[]; alarms: { code: string }[] }>(["status"]);
  assert.deepEqual([status.builds[0]?.state, status.alarms[0]?.code], ["BUDGET_PAUSE", "BUILD_PAUSED"]);
  assert.equal((await place.run(["health"])).code, 0);
});

test("a wrong token, and a budget without room, change nothing, and show in what was done", async () => {
  const id = (await newest(place)).id;
  const shown = () => place.json<{ history: { action: string; after: unknown }[] }>(["builds", "show", id]);
  const before = await shown();
  const wrong = `hft_${"x".repeat(43)}`;
  const known: [string[], string][] = [
    [["run", DOCS, "--token", "hft_short", "--budget", "1"], "TOKEN_MALFORMED"],
    [["run", DOCS, "--token", wrong, "--budget", "1"], "TOKEN_UNKNOWN"],
    [["run", DOCS, "--token", token, "--budget", "0.25"], "BUDGET_TOO_SMALL"],
    [["builds", "resume", id, "--file", DOCS, "--token", wrong, "--budget", "1"], "TOKEN_UNKNOWN"],
    [["builds", "approve", id, "--token", wrong, "--budget", "1"], "TOKEN_UNKNOWN"],
  ];
  const cases = selectFrom(known, 2);
  for (const [args, code] of cases) {
    const answer = await place.json<JsonError>(args, 2);
    assert.equal(answer.error.code, code);
  }
  const { history, ...after } = await shown();
  assert.deepEqual({ ...after, history: history.slice(0, before.history.length) }, before);
  assert.deepEqual(
    history.slice(before.history.length).map(({ action, after: why }) => [action, why]),
    [...new Set(cases.map(([, code]) => code))].map((code) => ["build.token_refused", { refused: code }]),
  );
});

test("with the token and a new budget it resumes, once, and costs no more than one pass", async () => {
  const { code, stdout } = await place.run(["run", DOCS, "--token", token, "--budget", "usd=5,tokens=100", "--json"]);
  assert.equal(code, 0);
  const last = linesOf(stdout).at(-1);
  assert.deepEqual([last?.state, last?.spent.usd, last?.budget], ["SUCCESS", 0.4, { usd: 5, tokens: 100 }]);
  const again = await place.run(["run", DOCS, "--token", token, "--budget", "5"]);
  assert.equal(again.code, 2);
  assert.match(again.stderr, /no build of pipeline "docs" is paused/);
});

test("another token can be made, an approval is kept, and the next run resumes with it", async () => {
  for (const name of ["a", "b"]) await writeDoc(place, name, `${name}, changed`);
  assert.equal((await place.run(["run", DOCS, "--budget", "0.1"])).code, 3);
  const { id } = await newest(place);
  const minted = await place.json<{ build: string; token: string }>(["builds", "token", id]);
  const approved = await place.json<Build>(["builds", "approve", id, "--token", minted.token, "--budget", "2"]);
  assert.deepEqual([approved.state, approved.budget], ["BUDGET_PAUSE", { usd: 2 }]);
  const { stdout: listed } = await place.run(["builds", "list"], { env: { COLUMNS: "200" } });
  assert.match(listed, new RegExp(`^${id} .* a new budget was approved$`, "m"));
  const { code, stdout } = await place.run(["run", DOCS]);
  assert.equal(code, 0);
  assert.match(stdout, new RegExp(`^Resuming build ${id}\\.`));
  const { stdout: audit } = await place.run(["audit", "--subject", id, "--json"]);
  assert.deepEqual(
    audit
      .trimEnd()
      .split("\n")
      .map((line) => (JSON.parse(line) as { action: string }).action),
    ["build.started", "build.paused", "build.token_minted", "build.approved", "build.resumed", "build.succeeded"],
  );
  assert.ok(!audit.includes(minted.token));
  const { stdout: events } = await place.run(["events", "--build", id, "--json"]);
  assert.match(events, /"type":"build\.approved"/);
  assert.equal(events.trimEnd().split("\n").length, 6);
});

test("a token can come from standard input or from the environment", async () => {
  for (const name of ["a", "b"]) await writeDoc(place, name, `${name}, piped`);
  assert.equal((await place.run(["run", DOCS, "--budget", "0.1"])).code, 3);
  const { id } = await newest(place);
  const none = await place.run(["builds", "approve", id, "--budget", "2"]);
  assert.deepEqual([none.code, /HOLDFAST_TOKEN/.test(none.stderr)], [2, true]);
  const mint = async () => (await place.json<{ token: string }>(["builds", "token", id])).token;
  const piped = { input: `${await mint()}\n` };
  assert.equal((await place.run(["builds", "approve", id, "--token", "-", "--budget", "2"], piped)).code, 0);
  const env = { HOLDFAST_TOKEN: await mint() };
  const { code, stdout } = await place.start(["run", DOCS, "--budget", "5"], { env }).ended;
  assert.equal(code, 0);
  assert.match(stdout, new RegExp(`^Resuming build ${id}\\.`));
  assert.equal(
    (await place.start(["run", DOCS], { env }).ended).code,
    0,
    "a token in the environment is no mistake where none is needed",
  );
});

test("a paused build can be refused more money, and ends FAILED", async () => {
  for (const name of ["a", "b"]) await writeDoc(place, name, `${name}, refused`);
  assert.equal((await place.run(["run", DOCS, "--budget", "0.1"])).code, 3);
  const { id } = await newest(place);
  assert.equal((await place.run(["builds", "refuse", id])).code, 2);
  const { code, stdout } = await place.run(["builds", "refuse", id, "--reason", "too expensive"]);
  assert.deepEqual([code, stdout], [0, `Refused build ${id} of "docs".\n`]);
  const { state, reason } = await newest(place);
  assert.deepEqual([state, reason], ["FAILED", "budget_refused: too expensive"]);
  assert.equal((await place.run(["run", DOCS, "--budget", "5"])).code, 0);
});

test("a pause of a build with --rerun says what is needed to finish", async () => {
  const plan = await place.json<{ estimate: { usd: number } }>(["plan", DOCS, "--rerun", "summarise"]);
  const { stdout } = await place.run(["run", DOCS, "--rerun", "summarise", "--budget", "0.1"]);
  assert.ok(stdout.includes(`estimated to cost $${plan.estimate.usd.toFixed(2)}.`), stdout);
  const { id } = await newest(place);
  await place.run(["builds", "abandon", id, "--reason", "seen"]);
});

// script, of util-linux, makes a terminal.
const noTerminal = /util-linux/.test(spawnSync("script", ["--version"], { encoding: "utf8" }).stdout ?? "")
  ? false
  : "there is no script command here";

test("on a terminal progress is drawn in place, and a pause asks for a budget", { skip: noTerminal }, async (t) => {
  for (const name of ["a", "b"]) await writeDoc(place, name, `${name}, changed again`);
  const bin = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
  const command = `stty cols 80 rows 24; exec '${process.execPath}' '${bin}' run '${DOCS}' --budget 0.1`;
  const child = spawn("script", ["-qec", command, "/dev/null"], {
    cwd: place.folder,
    env: { ...process.env, HOLDFAST_DB: place.db, TERM: "xterm", NO_COLOR: "1", FORCE_COLOR: undefined },
  });
  t.after(() => child.kill("SIGKILL"));
  let seen = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (seen += text));
  const said = async (text: string): Promise<void> => {
    while (!seen.includes(text)) await new Promise((resolve) => child.stdout.once("data", resolve));
  };
  await said("(Enter leaves it paused): ");
  assert.match(seen, /New total budget: at least \$0\.20, about \$0\.20 to finish/);
  child.stdin.write("0.15\r");
  await said("is too small");
  child.stdin.write("1\r");
  const code = await new Promise<number>((resolve) => child.on("close", resolve));
  assert.equal(code, 0, seen);
  const escape = "\u001b[";
  assert.ok(seen.includes(`${escape}?25l${escape}?7l`), "no cursor while it is drawn");
  assert.ok(seen.lastIndexOf(`${escape}?7h${escape}?25h`) > seen.lastIndexOf(`${escape}?25l`), "and it is back");
  assert.match(seen, /parse {6}[█░]{25} +\d/);
  assert.ok(seen.includes(`A\r${escape}0J`), "it is drawn over what was there");
  assert.match(seen, /SUCCESS docs build/);
  // oxlint-disable-next-line no-control-regex
  assert.doesNotMatch(seen, /\u001b\[\d+m/, "NO_COLOR is heeded");
});
