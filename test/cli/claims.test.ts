import assert from "node:assert/strict";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Holdfast, job, type Job, open } from "../../src/index.ts";
import { selectFrom } from "../selection.ts";
import { page, snippets } from "../docs/pages.ts";
import { type JsonError, Place } from "./holdfast.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

let place: Place;
let hf: Holdfast;
before(async () => {
  place = await Place.make();
  hf = await open(place.db);
});
after(async () => {
  await hf.close();
  await place.remove();
});

interface Handed {
  claim: string;
  job: Job;
  idempotencyKey: string;
  leaseExpiresAt: number;
}

const named = (name: string) => job({ name, run: () => {} });
const take = (queue: string, ...more: string[]) => place.json<Handed>(["claim", queue, "--worker", "anna", ...more]);
const stateOf = async (id: string) => (await hf.jobs.get(id))?.state;

test("a claim is carried from claim to renew to settle, and the job ends as it was said", async () => {
  const { id } = await hf.enqueue(named("one"), { pull: 7 }, { id: "it's no. 7" });
  const handed = await take("one", "--lease", "10m");
  assert.deepEqual([handed.job.id, handed.job.input, handed.job.state], [id, { pull: 7 }, "running"]);
  assert.ok(handed.idempotencyKey.endsWith(`:${id}`));
  assert.match(handed.claim, /^[\w.%~-]+$/, "a shell leaves it as it is");

  const renewed = await place.json<{ id: string; leaseExpiresAt: number }>(["renew", handed.claim, "--lease", "1h"]);
  assert.equal(renewed.id, id);
  assert.ok(renewed.leaseExpiresAt > handed.leaseExpiresAt);

  const ended = await place.run(["settle", handed.claim, "--succeed", "-"], { input: '{"verdict":"fine"}' });
  assert.deepEqual([ended.code, ended.stdout], [0, `Job ${id} succeeded.\n`], ended.stderr);
  const job = await hf.jobs.get(id);
  assert.deepEqual([job?.state, job?.output], ["succeeded", { verdict: "fine" }]);
  const minutes = await hf.engine.store.queues.minutes({ from: 0, queue: "one" });
  assert.equal(minutes[0]?.succeeded, 1, "the command has counted it");

  const again = await place.run(["settle", handed.claim, "--fail", "no"]);
  assert.equal(again.code, 1);
  assert.match(
    again.stderr,
    /^error: Job it's no\. 7 is already settled \(succeeded\), so this failure was rejected\. \[LEASE_LOST\]\n/,
  );
  assert.equal(await stateOf(id), "succeeded");
});

test("a claim without --worker is made by the host and the pid of the shell", async () => {
  const { id } = await hf.enqueue(named("unnamed"), 1);
  await place.json<Handed>(["claim", "unnamed"]);
  assert.equal((await hf.jobs.get(id))?.worker, `${hostname()}:${process.pid}`);
});

test("without a job claim exits 1: nothing on standard output, null with --json", async () => {
  const [text, json, shell] = await Promise.all([
    place.run(["claim", "empty", "--worker", "anna"]),
    place.run(["claim", "empty", "--worker", "anna", "--json"]),
    place.run(["claim", "--name", "empty", "--worker", "anna", "--shell"]),
  ]);
  assert.deepEqual([text.code, text.stdout, text.stderr], [1, "", "Nothing to claim.\n"]);
  assert.deepEqual([json.code, json.stdout], [1, "null\n"]);
  assert.deepEqual([shell.code, shell.stdout], [1, ""]);
});

test("a claim from a paused queue says that the queue is paused", async () => {
  await hf.enqueue(named("resting"), 1);
  await hf.queues.pause("resting");
  const { code, stderr } = await place.run(["claim", "resting"]);
  assert.deepEqual([code, stderr], [1, "Nothing to claim: queue resting is paused.\n"]);
});

test("a failed claim is tried again when it was said, or not at all; a released one as if nothing had been", async () => {
  const { id } = await hf.enqueue(job({ name: "two", version: 3, run: () => {} }), 1);
  const first = await place.json<Handed>(["claim", "--name", "two", "--worker", "anna"]);
  await place.json(["settle", first.claim, "--release"]);
  assert.deepEqual([await stateOf(id), (await hf.jobs.get(id))?.attempt], ["pending", 0]);

  const second = await take("two");
  const later = await place.run(["settle", second.claim, "--fail", "the site is down", "--delay", "10m"]);
  assert.equal(later.stdout, `The attempt failed. Job ${id} runs again in 10m.\n`);
  const waiting = await hf.jobs.get(id);
  assert.deepEqual([waiting?.state, waiting?.error], ["pending", { name: "Error", message: "the site is down" }]);

  const other = await hf.enqueue(named("three"), 1);
  await place.json(["settle", (await take("three")).claim, "--fail", "hopeless", "--no-retry"]);
  assert.equal(await stateOf(other.id), "failed");
});

test("what is no claim of this database is refused, and so is what contradicts itself", async () => {
  const { id } = await hf.enqueue(named("four"), 1);
  const { claim } = await take("four");
  const elsewhere = join(place.folder, "elsewhere.db");
  await using other = await open(elsewhere);
  await other.enqueue(named("four"), 1);
  assert.ok((await other.claim("four", { worker: "bert" })) !== null);
  const cases: [string[], string][] = [
    [["settle", claim.slice(0, -1), "--succeed"], "CLAIM_INVALID"],
    [["renew", `1${claim}`], "CLAIM_INVALID"],
    [["renew", "nonsense"], "CLAIM_INVALID"],
    [["settle", claim, "--succeed", "--db", elsewhere], "CLAIM_INVALID"],
    [["settle", claim], "USAGE"],
    [["settle", claim, "--succeed", "--release"], "USAGE"],
    [["settle", claim, "--succeed", "--no-retry"], "USAGE"],
    [["settle", claim, "--succeed", "{not json"], "USAGE"],
    [["settle", claim, "--fail", "x", "--delay", "soon"], "DURATION_INVALID"],
    [["renew", claim, "--lease", "0s"], "DURATION_INVALID"],
    [["claim", "--worker", "anna"], "USAGE"],
    [["claim", "four", "--name", "four", "--worker", "anna"], "USAGE"],
  ];
  const some = selectFrom(cases, 3);
  const answers = await Promise.all(some.map(([args]) => place.json<JsonError>(args, 2)));
  for (const [i, { error }] of answers.entries()) assert.equal(error.code, some[i]?.[1], some[i]?.[0].join(" "));
  assert.equal(await stateOf(id), "running");
});

test("claims at once never get the same job", async () => {
  const ids = await hf.enqueueMany(named("five"), [1, 2, 3]);
  const ended = await Promise.all(
    Array.from({ length: 4 }, (_, i) => place.run(["claim", "five", "--worker", `w${i}`, "--json"])),
  );
  const got = ended.flatMap(({ stdout }) => (JSON.parse(stdout) as Handed | null)?.job.id ?? []);
  assert.deepEqual(
    got.toSorted(),
    ids.map(({ id }) => id),
  );
  assert.equal(ended.filter(({ code }) => code === 1).length, 1);
});

test("when its lease has ended another claims the job, and the first can neither renew nor settle", async () => {
  const { id } = await hf.enqueue(named("six"), 1);
  const zombie = await take("six", "--lease", "1ms");
  const next = await take("six");
  assert.equal(next.job.id, id);
  for (const args of [
    ["renew", zombie.claim],
    ["settle", zombie.claim, "--succeed", '"zombie"'],
    ["settle", zombie.claim, "--release"],
  ]) {
    const { error } = await place.json<JsonError>(args, 1);
    assert.equal(error.code, "LEASE_LOST");
    assert.match(error.hint, /^Stop working on the job\. `holdfast jobs show \S+( --db \S+)?` shows which worker holds it\.$/);
  }
  await place.json(["settle", next.claim, "--succeed", '"living"']);
  assert.equal((await hf.jobs.get(id))?.output, "living");
});

test("an expired lease that no process has reclaimed is still good: it can be renewed and settled", async () => {
  const { id } = await hf.enqueue(named("late"), 1);
  // No worker runs here, and no process claims in between.
  const late = await take("late", "--lease", "1ms");
  await place.json(["renew", late.claim, "--lease", "1ms"]);
  await place.json(["settle", late.claim, "--succeed", '"late"']);
  assert.equal((await hf.jobs.get(id))?.output, "late");
});

test("renew --keep holds a job beyond its lease, and lets go when its input ends or the job is lost", async () => {
  const { id } = await hf.enqueue(named("ten"), 1);
  const { claim } = await take("ten", "--lease", "3s");
  const keeping = place.start(["renew", claim, "--lease", "3s", "--keep"], { input: null });
  await keeping.said("has a lease of 3s");
  // A waiting claim looks again when the lease would have ended, and would take the job then.
  assert.equal((await place.run(["claim", "ten", "--worker", "bert", "--wait", "3500ms"])).code, 1);
  keeping.child.stdin?.end();
  assert.equal((await keeping.ended).code, 0);
  const next = await place.json<Handed>(["claim", "ten", "--worker", "bert", "--wait", "10s"]);
  assert.equal(next.job.id, id);

  const other = place.start(["renew", next.claim, "--lease", "1s", "--keep"], { input: null });
  await other.said("has a lease of 1s");
  await hf.jobs.cancel(id);
  const { code, stderr } = await other.ended;
  assert.equal(code, 1);
  assert.match(stderr, /LEASE_LOST/);

  // Quick work: its input has ended before anything is renewed.
  const late = await place.run(["renew", claim, "--keep"]);
  assert.deepEqual([late.code, late.stderr], [0, ""]);
});

test("an exclusive claim keeps others out of the queue until it is settled", async () => {
  await hf.enqueueMany(named("seven"), [1, 2]);
  const first = await take("seven", "--exclusive");
  assert.equal((await place.run(["claim", "seven", "--worker", "bert"])).code, 1);
  await place.json(["settle", first.claim, "--succeed"]);
  await take("seven");
});

test("a claim whose output no process can read is released at once", async () => {
  const { id } = await hf.enqueue(named("eight"), 1);
  const deaf = place.start(["claim", "eight", "--worker", "anna", "--json"]);
  deaf.child.stdout?.destroy();
  await deaf.ended;
  const job = await hf.jobs.get(id);
  assert.deepEqual([job?.state, job?.attempt], ["pending", 0]);
});

test("a signal ends the wait for a job with exit 130", async () => {
  const waiting = place.start(["claim", "nine", "--worker", "anna", "--wait", "10m"]);
  await until(async () =>
    (await registeredProcesses(hf.engine.store.processes)).some(({ program }) => program === "holdfast claim"),
  );
  waiting.child.kill("SIGTERM");
  assert.equal((await waiting.ended).code, 130);
});

test("the script in the docs: two at once, one killed in the middle, and every job is done and settled once", async (t) => {
  if (spawnSync("bash", ["-c", "exec 9> >(cat)"]).status !== 0) return t.skip("there is no bash here");
  const script = snippets(page("docs/claims.md")).find(({ code }) => code.startsWith("#!/usr/bin/env bash"))?.code;
  const bin = join(place.folder, "bin");
  await mkdir(bin);
  const bash = (name: string, text: string) => writeFile(join(bin, name), `#!/usr/bin/env bash\n${text}`, { mode: 0o755 });
  const main = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
  await bash("holdfast", `exec '${process.execPath}' '${main}' "$@"\n`);
  // Says that it has begun, and continues when it has read a line. The killed script's own outlives it.
  const stays = `[ "$NAME" = first ] && exec sleep 600`;
  await bash("review", `echo "begun $JOB_ID $CLAIM $1" >&2; ${stays}; read -r word; echo "\\"$NAME \${word}\\""\n`);
  await writeFile(join(place.folder, "reviewer.sh"), script ?? "");

  const inputs = ["it's", '"; touch stolen; "', "$(touch stolen)", 4];
  const ids = (await hf.enqueueMany(named("reviews"), inputs)).map(({ id }) => id);
  const start = (name: string) => new Script(place, bin, name, { LEASE: "5s", WAIT: "1m" });
  const [first, second] = [start("first"), start("second")];
  try {
    const [lost, held] = await Promise.all([first.begun(0), second.begun(0)]);
    assert.notEqual(lost.id, held.id);

    // Only the script: what it started must not hold the job any longer.
    first.child.kill("SIGKILL");
    for (let done = 0; done < ids.length; done++) {
      await second.begun(done);
      second.child.stdin?.write("done\n");
    }
    const jobs = await Promise.all(ids.map((id) => hf.jobs.wait(id)));
    assert.deepEqual(
      jobs.map(({ state, output }) => [state, output]),
      ids.map(() => ["succeeded", "second done"]),
    );
    assert.deepEqual(
      jobs.map(({ id, crashes }) => crashes === (id === lost.id ? 1 : 0)),
      ids.map(() => true),
      "one crash, of the job that the killed script held",
    );
    assert.deepEqual(
      second.all.map(({ input }) => input).toSorted(),
      inputs.map((input) => JSON.stringify(input)).toSorted(),
      "what a job carries reaches the work as it is",
    );
    const late = await place.run(["settle", lost.claim, "--succeed", '"first"']);
    assert.equal(late.code, 1);
    assert.match(late.stderr, /LEASE_LOST/);
    assert.equal(second.said.match(/ succeeded\.\n/g)?.length, ids.length, second.said);
    assert.doesNotMatch(second.said, /LEASE_LOST|was reclaimed/);
    await assert.rejects(readFile(join(place.folder, "stolen")));
  } finally {
    await Promise.all([first.end(), second.end()]);
  }
});

/** The script of the docs, in a process group of its own, so that nothing of it outlives the test. */
class Script {
  readonly child: ChildProcess;
  said = "";
  readonly #closed: Promise<void>;

  constructor(place: Place, bin: string, name: string, env: NodeJS.ProcessEnv) {
    this.child = spawn("bash", ["reviewer.sh"], {
      cwd: place.folder,
      detached: true,
      env: {
        ...process.env,
        ...env,
        NAME: name,
        PATH: `${bin}:${process.env["PATH"]}`,
        HOLDFAST_DB: place.db,
        NODE_COMPILE_CACHE: place.cache,
      },
    });
    for (const stream of [this.child.stdout, this.child.stderr]) {
      stream?.setEncoding("utf8").on("data", (text: string) => (this.said += text));
    }
    this.#closed = new Promise((resolve) => this.child.on("close", () => resolve()));
  }

  get all(): { id: string; claim: string; input: string }[] {
    return [...this.said.matchAll(/^begun (\S+) (\S+) (.*)$/gm)].map(([, id = "", claim = "", input = ""]) => {
      return { id, claim, input };
    });
  }

  /** The job that it has begun as its nth. */
  async begun(nth: number): Promise<{ id: string; claim: string }> {
    for (;;) {
      const begun = this.all[nth];
      if (begun !== undefined) return begun;
      assert.equal(this.child.exitCode, null, `the script has ended:\n${this.said}`);
      await Promise.race([new Promise((resolve) => this.child.stderr?.once("data", resolve)), this.#closed]);
    }
  }

  async end(): Promise<void> {
    try {
      process.kill(-(this.child.pid as number), "SIGKILL");
    } catch {
      // Nothing of it is left.
    }
    this.child.stdin?.destroy();
    await this.#closed;
  }
}

/** Looks again whenever another process has committed something. */
async function until(isSo: () => Promise<boolean>): Promise<void> {
  let changed = Promise.withResolvers<void>();
  const stop = hf.engine.store.onChange(() => changed.resolve());
  while (!(await isSo())) {
    await changed.promise;
    changed = Promise.withResolvers();
  }
  stop();
}
