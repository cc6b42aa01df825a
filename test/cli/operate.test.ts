import assert from "node:assert/strict";
import { hostname } from "node:os";
import { after, before, test } from "node:test";
import {
  type AttemptView,
  type Explanation,
  type Holdfast,
  type Job,
  job,
  open,
  type Page,
  type StandardSchema,
} from "../../src/index.ts";
import { type JsonError, Place } from "./holdfast.ts";

let place: Place;
let hf: Holdfast;
const ids: Record<"good" | "failed" | "waiting" | "odd" | "odder", string> = {
  good: "",
  failed: "",
  waiting: "",
  odd: "",
  odder: "",
};

before(async () => {
  place = await Place.make();
  hf = await open(place.db);
  const good = job({ name: "good", run: () => ({ answer: 42 }) });
  const broken = job({
    name: "broken",
    queue: "trouble",
    retry: { attempts: 1 },
    run: () => Promise.reject(new Error(COLOURED)),
  });
  const odd = job({ name: "odd", run: () => {} });
  const enqueued = await Promise.all([
    hf.enqueue(good, { page: 1 }, { key: "first", tags: ["often", "seldom"] }),
    hf.enqueue(broken, 1),
    hf.enqueue(job({ name: "later", run: () => {} }), 1, { delay: "2h" }),
    hf.enqueue(odd, 1),
    hf.enqueue(odd, 2),
  ]);
  [ids.good, ids.failed, ids.waiting, ids.odd, ids.odder] = enqueued.map(({ id }) => id) as [
    string,
    string,
    string,
    string,
    string,
  ];
  // Its worker cannot read its input any more, so it is quarantined.
  const worker = hf.work([good, broken, job({ name: "odd", input: nothing, run: () => {} })]);
  for (const id of [ids.good, ids.failed, ids.odd, ids.odder]) await hf.jobs.wait(id);
  await worker.stop();
});
after(async () => {
  await hf.close();
  await place.remove();
});

const COLOURED = "no \u001b[31mluck\nat all";
const nothing: StandardSchema = {
  "~standard": { version: 1, vendor: "test", validate: () => ({ issues: [{ message: "Not this." }] }) },
};

test("jobs list pages through jobs in the order they were made", async () => {
  const oldest = ["jobs", "list", "--order", "oldest"];
  const first = await place.json<Page<Job>>([...oldest, "--limit", "3"]);
  assert.deepEqual(
    first.items.map(({ id, state }) => [id, state]),
    [
      [ids.good, "succeeded"],
      [ids.failed, "failed"],
      [ids.waiting, "pending"],
    ],
  );
  const rest = await place.json<Page<Job>>([...oldest, "--after", first.next ?? ""]);
  assert.deepEqual(
    rest.items.map(({ id }) => id),
    [ids.odd, ids.odder],
  );
  assert.equal(rest.next, undefined);
  const trouble = await place.json<Page<Job>>(["jobs", "list", "--queue", "trouble", "--name", "broken", "--state", "failed"]);
  assert.deepEqual(
    trouble.items.map(({ id }) => id),
    [ids.failed],
  );

  const { stdout } = await place.run([...oldest, "--limit", "3"]);
  const lines = stdout.split("\n");
  assert.match(lines[0] ?? "", /^ID +NAME +QUEUE +STATE +TRY +AGE +NOTE$/);
  assert.match(lines[2] ?? "", / broken +trouble +failed +1 +\d+s +no luck at all$/);
  assert.match(lines[3] ?? "", / later +later +pending +0 +\d+s +in 2h$/);
  assert.match(lines[4] ?? "", /^More: --after \d+$/);
});

test("jobs list begins with the newest, and finds jobs by each of its flags", async () => {
  const list = async (...flags: string[]) =>
    (await place.json<Page<Job>>(["jobs", "list", ...flags])).items.map(({ id }) => id).filter((id) => all.includes(id));
  const all = [ids.odder, ids.odd, ids.waiting, ids.failed, ids.good];
  assert.deepEqual(await list(), all);
  assert.deepEqual(await list("--state", "failed", "--state", "pending"), [ids.waiting, ids.failed]);
  assert.deepEqual(await list("--key", "first"), [ids.good]);
  assert.deepEqual(await list("--tag", "seldom"), [ids.good]);
  assert.deepEqual(await list("--error", "LUCK"), [ids.failed]);
  assert.deepEqual(await list("--input", "page=1"), [ids.good]);
  assert.deepEqual(await list("--input", 'page="1"'), []);
  assert.deepEqual(await list("--created-after", "2026-01-01", "--state", "succeeded"), [ids.good]);
  assert.deepEqual(await list("--created-before", "2026-01-01"), []);
  assert.deepEqual(
    await list("--finished-after", "2026-01-01", "--order", "oldest"),
    all.toReversed().filter((id) => id !== ids.waiting),
  );
  assert.deepEqual(await list("--finished-before", "2026-01-01"), []);
  const { stderr } = await place.run(["jobs", "list", "--input", "page"]);
  assert.match(stderr, /Give a path and its value, e\.g\. user\.id=7/);
  const { stdout } = await place.run(["jobs", "show", ids.good]);
  assert.match(stdout, /^tags +often, seldom$/m);
});

test("jobs retry, cancel and remove change all that match, after a count and with --yes", async (t) => {
  const own = await Place.make();
  t.after(() => own.remove());
  await using all = await open(own.db, { log: false });
  const mail = job<number>({ name: "mail", run: () => {} });
  await all.enqueueMany(mail, [1, 2, 3, 4], (n) => ({ id: `m${n}` }));
  for (const message of ["timeout", "timeout", "refused"]) {
    const claim = await all.claim(mail, { worker: "me" });
    await claim?.fail(new Error(message), { retry: false });
  }
  const retry = ["jobs", "retry", "--state", "failed", "--queue", "mail", "--error", "timeout"];
  const refused = await own.run(retry);
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /2 jobs would be retried; nothing was changed/);
  assert.match(refused.stderr, /--yes/);
  assert.equal((await own.json<JsonError>(retry, 2)).error.code, "USAGE");
  assert.equal((await all.jobs.counts()).failed, 3);
  assert.deepEqual(await own.json([...retry, "--yes"]), { matched: 2, changed: 2 });
  const none = await own.run(retry);
  assert.deepEqual([none.code, none.stdout], [0, "Retried 0 jobs.\n"], "nothing matches, so there is nothing to confirm");
  const cancelled = await own.run(["jobs", "cancel", "--input", "x=1", "--name", "mail", "--yes"]);
  assert.equal(cancelled.stdout, "Cancelled 0 jobs.\n");
  assert.equal((await own.run(["jobs", "cancel", "--name", "mail", "--yes"])).stdout, "Cancelled 3 jobs.\n");
  assert.deepEqual(await own.json(["jobs", "remove", "--state", "cancelled", "--yes"]), { matched: 3, changed: 3 });
  assert.equal((await own.run(["jobs", "remove", "m3"])).stdout, "Removed 1 job.\n");
  assert.deepEqual((await all.jobs.list()).items, []);
  for (const wrong of [
    ["jobs", "remove", "--yes"],
    ["jobs", "retry", "m1", "--queue", "mail"],
  ])
    assert.equal((await own.run(wrong)).code, 2, wrong.join(" "));
});

test("jobs list and jobs show say who holds a running job, and until when", async (t) => {
  const started = Promise.withResolvers<void>();
  const gate = Promise.withResolvers<void>();
  const slow = job({
    name: "slow",
    lease: "10m",
    run: () => {
      started.resolve();
      return gate.promise;
    },
  });
  const review = job({ name: "review", run: () => {} });
  const worker = hf.work([slow]);
  t.after(async () => {
    gate.resolve();
    await worker.stop();
  });
  const { id } = await hf.enqueue(slow, {});
  await started.promise;
  const { id: byHand } = await hf.enqueue(review, {});
  await using claim = await hf.claim(review, { worker: "anna", lease: "2h" });
  assert.ok(claim !== null);

  const running = await hf.jobs.get(id);
  const holder = `${hostname()}:${process.pid}`;
  assert.deepEqual([running?.worker, running?.host, running?.pid], [holder, hostname(), process.pid]);
  const { items } = await place.json<Page<Job>>(["jobs", "list", "--state", "running", "--order", "oldest"]);
  assert.deepEqual(
    items.map(({ worker: name, host, pid }) => [name, host, pid]),
    [
      [holder, hostname(), process.pid],
      ["anna", undefined, undefined],
    ],
  );
  assert.ok(items.every(({ leaseExpiresAt = 0 }) => leaseExpiresAt > Date.now()));
  const { stdout: list } = await place.run(["jobs", "list", "--state", "running", "--order", "oldest"]);
  const lines = list.split("\n");
  assert.match(lines[0] ?? "", /^ID +NAME +STATE +TRY +AGE +WORKER +LEASE +NOTE$/);
  assert.match(lines[1] ?? "", new RegExp(`${id} .*${holder} +(10|9)m`));
  assert.match(lines[2] ?? "", new RegExp(`${byHand} .*anna +2h`));
  const { stdout: shown } = await place.run(["jobs", "show", id]);
  assert.match(shown, new RegExp(`worker +${holder}\\nprocess +pid ${process.pid} on ${hostname()}\\nlease +until \\d{4}-`));
  const { stdout: held } = await place.run(["jobs", "show", byHand]);
  assert.match(held, /worker +anna\nlease +until/);
  // Nothing is left for the tests that follow.
  await claim.succeed();
});

test("jobs show prints the log lines that a queue keeps", async () => {
  const talk = job({ name: "talk", queue: { name: "talk", logs: 5 }, run: ({ log }) => log.warn("odd\u001b[31m", { page: 7 }) });
  const { id } = await hf.enqueue(talk, 1);
  const worker = hf.work([talk]);
  await hf.jobs.wait(id);
  await worker.stop();
  const { stdout } = await place.run(["jobs", "show", id]);
  assert.match(stdout, /\n +1 +succeeded +\d{4}-\S+ \S+ +\S+ +\S+:\d+ *\n/);
  assert.match(stdout, /\n\nLog of attempt 1\n {2}\d{4}-\S+ \S+ warn {2}odd\S* \{"page":7\}\n$/);
  assert.ok(!stdout.includes("\u001b"));
  assert.equal(await hf.jobs.removeAll({ name: "talk" }).then(({ changed }) => changed), 1);
});

test("jobs show tells everything about one job, and lets no escape codes through", async () => {
  const good = await place.json<Job>(["jobs", "show", ids.good]);
  assert.deepEqual(good, { ...(await hf.jobs.get(ids.good)), attempts: await hf.jobs.attempts(ids.good) });
  const { stdout } = await place.run(["jobs", "show", ids.failed]);
  assert.match(stdout, /\nqueue {5}trouble\nstate {5}failed\n[^]*\ninput {5}1\nerror {5}Error: no luck\n {10}at all\n/);
  assert.match(
    stdout,
    /\n\nTRY +OUTCOME +STARTED +TOOK +WORKER +ERROR\n +1 +failed +\d{4}-\S+ \S+ +\S+ +\S+:\d+ +no luck at all\n$/,
  );
  assert.ok(!stdout.includes("\u001b"));
  const { attempts } = await place.json<{ attempts: AttemptView[] }>(["jobs", "show", ids.failed]);
  assert.deepEqual(
    attempts.map(({ outcome, host, pid }) => [outcome, host, pid]),
    [["failed", hostname(), process.pid]],
  );
  const { error } = await place.json<JsonError>(["jobs", "show", "nope"], 1);
  assert.equal(error.code, "NO_SUCH_JOB");
});

test("jobs why says why a job does not run, in a sentence and as JSON", async () => {
  const { stdout } = await place.run(["jobs", "why", ids.waiting]);
  assert.equal(stdout, "delayed: The job can start in 2 h.\n");
  const explanation = await place.json<Explanation>(["jobs", "why", ids.waiting]);
  assert.deepEqual(explanation, {
    state: "pending",
    reason: "delayed",
    message: "The job can start in 2 h.",
    until: (await hf.jobs.get(ids.waiting))?.runAt,
  });
  assert.match(
    (await place.run(["jobs", "why", ids.failed])).stdout,
    /^finished: The job failed \d+ s ago, after 1 attempt\.\n$/,
  );
  const { error } = await place.json<JsonError>(["jobs", "why", "nope"], 1);
  assert.equal(error.code, "NO_SUCH_JOB");
});

test("jobs retry and cancel do what can be done, say what cannot, and then exit 1", async () => {
  const retried = await place.json<object>(["jobs", "retry", ids.failed, ids.good], 1);
  assert.deepEqual(retried, {
    retried: [ids.failed],
    refused: [{ id: ids.good, reason: "Its state is succeeded; only failed and quarantined jobs can be retried." }],
  });
  assert.equal((await hf.jobs.get(ids.failed))?.state, "pending");
  const cancelled = await place.run(["jobs", "cancel", ids.failed, ids.waiting]);
  assert.deepEqual([cancelled.code, cancelled.stdout], [0, "Cancelled 2 jobs.\n"]);
  const again = await place.run(["jobs", "cancel", ids.waiting, "nope"]);
  assert.equal(again.code, 1);
  assert.equal(
    again.stdout,
    `not cancelled ${ids.waiting}: It has already finished (cancelled).\nnot cancelled nope: There is no job nope.\n`,
  );
});

test("quarantine retry and purge touch quarantined jobs only, and purge --all wants --yes", async () => {
  const list = await place.json<Page<Job>>(["quarantine", "list"]);
  assert.deepEqual(
    list.items.map(({ id, state }) => [id, state]),
    [
      [ids.odd, "quarantined"],
      [ids.odder, "quarantined"],
    ],
  );
  const health = await place.run(["health"]);
  assert.deepEqual([health.code, health.stdout], [1, "not ok: 2 jobs are quarantined\n"]);

  const purged = await place.json<object>(["quarantine", "purge", ids.odd, ids.good], 1);
  assert.deepEqual(purged, {
    purged: [ids.odd],
    refused: [{ id: ids.good, reason: "Its state is succeeded, not quarantined." }],
  });
  assert.equal(await hf.jobs.get(ids.odd), null);
  const unsure = await place.run(["quarantine", "purge", "--all"]);
  assert.equal(unsure.code, 2);
  assert.match(
    unsure.stderr,
    /error: This would remove 1 quarantined job for good, so nothing was removed\. \[USAGE\]\nhint: {2}Add --yes/,
  );

  const retried = await place.json<object>(["quarantine", "retry", "--all"]);
  assert.deepEqual(retried, { retried: [ids.odder], refused: [] });
  assert.equal((await hf.jobs.get(ids.odder))?.state, "pending");
  assert.deepEqual(await place.json(["quarantine", "purge", "--all", "--yes"]), { purged: [], refused: [] });
});
