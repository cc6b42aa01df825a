import type { ScheduleDetails } from "../../src/operator/operator.ts";
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { after, describe, test } from "node:test";
import { type AttemptView, type Explanation, items, type Job, job, pipeline, type Plan } from "../../src/index.ts";
import { addMinutes, noMinute, type QueueMinute } from "../../src/core/jobs/minutes.ts";
import { drain } from "../../src/testing/index.ts";
import type { GridPage, GridRow, SpendPoint } from "../../src/operator/build-details.ts";
import type { LimitUsage } from "../../src/store/queues.ts";
import { ROUTES } from "../../src/server/routes/index.ts";
import { called, endServer, errorOf, type Site, site, skips, STORES } from "./parts.ts";

after(endServer);

interface Listed {
  items: Job[];
  next?: string;
}
const enqueue = async (one: Site, body: object) => (await one.call<{ id: string }>("jobs.enqueue", { body })).id;
const messageOf = async (response: Response) => ((await response.json()) as { error: { message: string } }).error.message;
const stateOf = async (one: Site, id: string) => (await one.call<Job>("jobs.get", { path: { id } })).state;

for (const store of STORES) {
  describe(`the API on ${store}`, skips(store), () => {
    test("jobs are enqueued, listed in pages, shown, cancelled and retried", async (t) => {
      const one = await site(t, store);
      const ids: string[] = [];
      for (let i = 0; i < 3; i++) ids.push(await enqueue(one, { name: "mail", input: { i }, priority: i, key: `k${i}` }));
      const first = await one.call<Listed>("jobs.list", { query: { limit: "2", queue: "mail" } });
      const second = await one.call<Listed>("jobs.list", { query: { limit: "2", after: first.next as string } });
      assert.deepEqual(
        [...first.items, ...second.items].map(({ id }) => id),
        ids,
      );
      assert.deepEqual((await one.call<Job>("jobs.get", { path: { id: ids[1] as string } })).input, { i: 1 });
      assert.deepEqual(await one.call("jobs.cancel", { path: { id: ids[0] as string } }), { changed: true });
      assert.equal(await stateOf(one, ids[0] as string), "cancelled");
      assert.deepEqual(await one.call("jobs.retry", { path: { id: ids[0] as string } }), { changed: false });
      assert.equal((await one.call<Record<string, number>>("jobs.counts", { query: { queue: "mail" } }))["pending"], 2);
      assert.deepEqual(await errorOf(await one.fetch("api/v1/jobs/absent")), {
        status: 404,
        code: "NO_SUCH_JOB",
        hint: "Check the id and the database; the job may have been removed.",
      });
    });

    test("jobs are found by tag, key, input, state and time, in both orders", async (t) => {
      const one = await site(t, store);
      const ids: string[] = [];
      for (let i = 0; i < 4; i++) {
        const tags = i % 2 === 0 ? ["even"] : ["odd"];
        ids.push(await enqueue(one, { name: "mail", input: { user: { id: i } }, key: `k${i}`, tags }));
      }
      await one.call("jobs.cancel", { path: { id: ids[0] as string } });
      const found = async (query: Record<string, string>) =>
        (await one.call<Listed>("jobs.list", { query })).items.map(({ id }) => ids.indexOf(id));
      assert.deepEqual(await found({ order: "newest" }), [3, 2, 1, 0]);
      assert.deepEqual(await found({ tag: "even" }), [0, 2]);
      assert.deepEqual(await found({ tag: "even", state: "pending" }), [2]);
      assert.deepEqual(await found({ key: "k3" }), [3]);
      assert.deepEqual(await found({ input: "user.id=1" }), [1]);
      assert.deepEqual(await found({ finishedAfter: "1", createdAfter: "1" }), [0]);
      assert.deepEqual(await found({ createdBefore: "1" }), []);
      assert.deepEqual(await found({ error: "timeout" }), []);
      const states = await (await one.fetch("api/v1/jobs?state=cancelled&state=pending&limit=2")).json();
      assert.equal((states as Listed).items.length, 2);
      assert.equal((await errorOf(await one.fetch("api/v1/jobs?input=user"))).code, "REQUEST_INVALID");
    });

    test("the error of an invalid request names the field", async (t) => {
      const one = await site(t, store);
      assert.equal(await messageOf(await one.fetch("api/v1/jobs?limit=many")), "`limit` must be a whole number.");
      assert.match(await messageOf(await one.fetch("api/v1/jobs?state=lost")), /^The query's `state` is not valid: /);
      assert.equal(
        await messageOf(await one.fetch("api/v1/claims", { method: "POST", body: '{"queue":"mail"}' })),
        "`worker` is required.",
      );
    });

    test("a queue that a definition could not have is refused", async (t) => {
      const one = await site(t, store);
      for (const queue of ["", "a\nb", "a\u0000b", "q".repeat(999), "\ud800", "pipeline/docs"]) {
        const body = JSON.stringify({ name: "mail", queue });
        const { status, code } = await errorOf(await one.fetch("api/v1/jobs", { method: "POST", body }));
        assert.deepEqual([status, code], [400, "NAME_INVALID"], JSON.stringify(queue));
      }
      assert.equal((await one.hf.jobs.counts()).pending, 0);
    });

    test("a job is replaced by its key", async (t) => {
      const one = await site(t, store);
      const id = await enqueue(one, { name: "mail", input: 1, key: "k" });
      const body = { name: "mail", input: 2, key: "k", onDuplicate: "replace" };
      assert.deepEqual(await one.call("jobs.enqueue", { body }), { id, duplicate: true });
      assert.equal((await one.call<Job>("jobs.get", { path: { id } })).input, 2);
    });

    test("all jobs that match are counted, cancelled, retried and removed", async (t) => {
      const one = await site(t, store);
      for (let i = 0; i < 4; i++) await enqueue(one, { name: "mail", input: { i }, tags: i < 3 ? ["some"] : [] });
      const found = { body: { tag: "some", createdAfter: 1 } };
      assert.deepEqual(await one.call("jobs.cancelAll", { body: { ...found.body, dryRun: true } }), { matched: 3, changed: 0 });
      const withReason = { body: { ...found.body, reason: "sent twice" } };
      assert.deepEqual(await one.call("jobs.cancelAll", withReason), { matched: 3, changed: 3 });
      const { items } = await one.call<{ items: { subject: string; after: { reason?: string } }[] }>("audit.list");
      const calls = items.filter(({ subject }) => subject === "api:POST /api/v1/jobs/cancel-all");
      assert.deepEqual(
        calls.map(({ after }) => after.reason),
        ["sent twice"],
        "the count before it is not audited",
      );
      assert.deepEqual(await one.call("jobs.retryAll", found), { matched: 0, changed: 0 });
      assert.deepEqual(await one.call("jobs.removeAll", { body: { state: ["cancelled", "pending"], input: { i: 1 } } }), {
        matched: 1,
        changed: 1,
      });
      const body = JSON.stringify({ state: "pending" });
      const refused = await errorOf(await one.fetch("api/v1/jobs/remove-all", { method: "POST", body }));
      assert.deepEqual([refused.status, refused.code], [400, "OPTION_INVALID"]);
    });

    test("a job is claimed, renewed and settled; a second settlement is refused", async (t) => {
      const one = await site(t, store);
      const id = await enqueue(one, { name: "mail", input: 1 });
      const { claim } = await one.call<{ claim: { token: string; job: Job } }>("claims.claim", {
        body: { queue: "mail", worker: "python", lease: "1m" },
      });
      assert.equal(claim.job.id, id);
      assert.deepEqual(await one.call("claims.claim", { body: { name: "mail", worker: "python" } }), { claim: null });
      const { token } = claim;
      const { leaseExpiresAt } = await one.call<{ leaseExpiresAt: number }>("claims.renew", { body: { token, lease: "10m" } });
      assert.ok(leaseExpiresAt > (claim.job.leaseExpiresAt as number));
      await one.call("claims.settle", { body: { token, outcome: "failed", error: { message: "no" }, retry: false } });
      assert.equal((await one.call<Job>("jobs.get", { path: { id } })).error?.message, "no");
      assert.deepEqual(await one.call("jobs.retry", { path: { id } }), { changed: true });
      const body = JSON.stringify({ token, outcome: "succeeded" });
      const late = await errorOf(await one.fetch("api/v1/claims/settle", { method: "POST", body }));
      assert.deepEqual([late.status, late.code], [409, "LEASE_LOST"]);
      const again = await one.call<{ claim: { token: string } }>("claims.claim", { body: { name: "mail", worker: "python" } });
      await one.call("claims.settle", { body: { token: again.claim.token, outcome: "succeeded", output: { sent: true } } });
      assert.deepEqual((await one.call<Job>("jobs.get", { path: { id } })).output, { sent: true });
      const { items: attempts } = await one.call<{ items: AttemptView[] }>("jobs.attempts", { path: { id } });
      assert.deepEqual(
        attempts.map(({ attempt, outcome, worker, error }) => [attempt, outcome, worker, error?.message]),
        [
          [1, "failed", "python", "no"],
          [2, "succeeded", "python", undefined],
        ],
      );
      assert.equal((await errorOf(await one.fetch("api/v1/jobs/absent/attempts"))).code, "NO_SUCH_JOB");
    });

    test("a stage of a pipeline cannot be claimed, by its queue or by its name", async (t) => {
      const one = await site(t, store);
      for (const source of [{ queue: "pipeline/docs" }, { name: "pipeline/docs/draft" }]) {
        const body = JSON.stringify({ ...source, worker: "python" });
        const { status, code } = await errorOf(await one.fetch("api/v1/claims", { method: "POST", body }));
        assert.deepEqual([status, code], [400, "NAME_INVALID"]);
      }
    });

    test("a job that does not run is explained", async (t) => {
      const one = await site(t, store);
      const reason = async (id: string) => (await one.call<Explanation>("jobs.explain", { path: { id } })).reason;
      const id = await enqueue(one, { name: "mail", input: 1 });
      const delayed = await enqueue(one, { name: "mail", input: 1, delay: "1h" });
      const last = await enqueue(one, { name: "mail", input: 1, after: [id] });
      assert.deepEqual(
        [await reason(id), await reason(delayed), await reason(last)],
        ["no-worker", "delayed", "waiting-for-job"],
      );
      await one.call("queues.pause", { path: { name: "mail" } });
      assert.equal(await reason(id), "queue-paused");
      assert.equal((await errorOf(await one.fetch("api/v1/jobs/absent/explain"))).code, "NO_SUCH_JOB");
    });

    test("what `redact` removes from a job's error, it removes from its attempts", async (t) => {
      const one = await site(t, store, { redact: (shown) => ({ ...shown, error: { name: "Error", message: "redacted" } }) });
      const id = await enqueue(one, { name: "mail", input: 1 });
      const { claim } = await one.call<{ claim: { token: string } }>("claims.claim", {
        body: { name: "mail", worker: "python" },
      });
      await one.call("claims.settle", { body: { token: claim.token, outcome: "failed", error: { message: "a secret" } } });
      const { items: attempts } = await one.call<{ items: AttemptView[] }>("jobs.attempts", { path: { id } });
      assert.deepEqual(
        attempts.map(({ outcome, error }) => [outcome, error]),
        [["failed", { name: "Error", message: "redacted" }]],
      );
    });

    test("what `redact` removes from jobs is in no event, and cannot be guessed by filters", async (t) => {
      const one = await site(t, store, { redact: (shown) => ({ ...shown, input: null, error: { name: "Error", message: "" } }) });
      const mail = job({ name: "mail", queue: { name: "mail", events: true }, retry: { attempts: 1 }, run: () => null });
      const { id } = await one.hf.enqueue(mail, { card: "4111" });
      const { claim } = await one.call<{ claim: { token: string } }>("claims.claim", {
        body: { name: "mail", worker: "python" },
      });
      await one.call("claims.settle", { body: { token: claim.token, outcome: "failed", error: { message: "card 4111" } } });
      const { items: events } = await one.call<{ items: { type: string; data: object }[] }>("events.list", {
        query: { types: "job.failed" },
      });
      assert.deepEqual(
        events.map(({ data }) => data),
        [{ id, name: "mail", queue: "mail", version: 1, attempt: 1 }],
      );
      const stream = await one.fetch("api/v1/events/stream?types=job.failed&after=0");
      assert.ok(!(await readUntil(stream, /event: job\.failed\ndata: .*\n\n/)).includes("4111"));
      const hidden = { input: { card: "4111" } };
      const post = { method: "POST", body: JSON.stringify({ ...hidden, dryRun: true }) };
      for (const [path, init] of [["jobs?error=4111"], ["jobs?input=card=4111"], ["jobs/retry-all", post]] as const)
        assert.equal((await errorOf(await one.fetch(`api/v1/${path}`, init))).code, "REQUEST_INVALID", path);
      assert.equal((await one.call<Listed>("jobs.list", { query: { state: "failed" } })).items.length, 1);
    });

    test("queues are paused and resumed, schedules too", async (t) => {
      const one = await site(t, store);
      const refused = await one.fetch("api/v1/queues/mial/pause", { method: "POST" });
      assert.equal((await errorOf(refused)).code, "NO_SUCH_QUEUE");
      await one.call("queues.pause", { path: { name: "mail" }, body: { ahead: true } });
      const { items: queues } = await one.call<{ items: { name: string; paused: boolean }[] }>("queues.list");
      assert.deepEqual(
        queues.map(({ name, paused }) => [name, paused]),
        [["mail", true]],
      );
      await one.call("queues.resume", { path: { name: "mail" } });
      const tick = job({ name: "tick", run: () => null });
      await one.hf.schedule(tick, { key: "nightly", cron: "0 3 * * *", input: null });
      const path = { key: "nightly" };
      const [nightly] = (await one.call<{ items: ScheduleDetails[] }>("schedules.list")).items;
      assert.deepEqual([nightly?.missed, nightly?.overlap, nightly?.nextRuns.length], ["once", true, 5]);
      assert.ok(nightly?.nextRuns.every((at, i) => at === nightly.nextAt + i * 86_400_000));
      await one.call("schedules.pause", { path });
      assert.equal((await one.call<{ items: { paused: boolean }[] }>("schedules.list")).items[0]?.paused, true);
      await one.call("schedules.resume", { path });
      const { id } = await one.call<{ id: string }>("schedules.trigger", { path });
      assert.equal(await stateOf(one, id), "pending");
      assert.deepEqual(await one.call("schedules.remove", { path }), { changed: true });
      assert.deepEqual(await one.call("schedules.remove", { path }), { changed: false });
    });

    test("what ended is counted by queue and minute, and shown with histograms", async (t) => {
      const one = await site(t, store);
      const mail = job({ name: "mail", retry: { attempts: 1 }, run: ({ input }) => assert.ok(input) });
      await one.hf.enqueueMany(mail, [1, 1, 0]);
      const slow = job({ name: "slow", timeout: "20ms", retry: { attempts: 1 }, run: () => new Promise(() => {}) });
      await one.hf.enqueue(slow, 1);
      await drain(one.hf, [mail, slow]);
      await one.hf.engine.minutes.flush();
      const { items: timedOut } = await one.call<{ items: QueueMinute[] }>("stats.get", { query: { queue: "slow" } });
      assert.equal(timedOut[0]?.failed, 1);
      const { items: minutes } = await one.call<{ items: QueueMinute[] }>("stats.get", { query: { queue: "mail" } });
      const sum = noMinute();
      for (const counted of minutes) addMinutes(sum, counted);
      assert.deepEqual([sum.succeeded, sum.failed, sum.retried], [2, 1, 0]);
      assert.deepEqual(
        [sum.waits, sum.runs].map((buckets) => buckets.reduce((a, b) => a + b)),
        [3, 3],
      );
      assert.match(await (await one.fetch("metrics")).text(), /^holdfast_job_run_seconds_count\{queue="mail"\} 3$/m);
    });

    test("builds are listed, explained, approved and refused", async (t) => {
      const one = await site(t, store);
      const docs = pipeline("docs", { budget: { usd: 1 } })
        .source(items(() => ["a", "b"], { id: (one) => one }))
        .stage("draft", { version: 1, estimate: { usd: 0.75 } }, ({ target, cost }) => {
          cost({ usd: 0.75 });
          return { text: target.id };
        });
      const build = await (await one.hf.builds.start(docs)).done();
      assert.equal(build.state, "BUDGET_PAUSE");
      const path = { id: build.id };
      assert.equal((await one.call<{ items: unknown[] }>("builds.list", { query: { pipeline: "docs" } })).items.length, 1);
      assert.equal((await one.call<{ state: string }>("builds.get", { path })).state, "BUDGET_PAUSE");
      const ran = { stage: "draft", target: "a" };
      await one.call("builds.why", { path, query: ran });
      assert.deepEqual(await one.call("builds.output", { path, query: ran }), { output: { text: "a" } });
      const { token } = await one.call<{ token: string }>("builds.token", { path });
      await one.call("builds.approve", { path, body: { token, budget: { usd: 2 } } });
      const { points } = await one.call<{ points: SpendPoint[] }>("builds.spend", { path });
      const steps = points.map(({ spent, budget }) => `${spent.usd} of ${budget.usd}`);
      assert.deepEqual([...new Set(steps)], ["0 of 1", "0.75 of 1", "0.75 of 2"]);
      assert.deepEqual(
        [points[0]?.at, points.map(({ at }) => at)],
        [build.createdAt, points.map(({ at }) => at).sort((a, b) => a - b)],
      );
      assert.equal((await one.call<{ approved?: true }>("builds.get", { path })).approved, true);
      const { items: held } = await one.call<Listed>("jobs.list", { query: { state: "pending" } });
      const why = await one.call<{ message: string }>("jobs.explain", { path: { id: held[0]?.id as string } });
      assert.match(why.message, /has a new budget, and waits for its next run\.$/);
      await one.call("builds.abandon", { path, body: { reason: "not needed" } });
      const second = await (await one.hf.builds.start(docs, { rerun: ["draft"] })).done();
      await one.call("builds.refuse", { path: { id: second.id }, body: { reason: "too expensive" } });
      assert.equal((await one.call<{ state: string }>("builds.get", { path: { id: second.id } })).state, "FAILED");
    });

    test("limits in use are listed by key, with what runs and what waits", async (t) => {
      const one = await site(t, store);
      const call = job<{ customer: string }>({
        name: "call",
        limit: { concurrency: 1, key: ({ customer }) => customer },
        run: () => null,
      });
      await one.hf.enqueueMany(call, [{ customer: "acme" }, { customer: "acme" }, { customer: "acme" }, { customer: "zed" }]);
      await one.call("claims.claim", { body: { name: "call", worker: "w" } });
      const { items: limits } = await one.call<{ items: LimitUsage[] }>("limits.list");
      assert.deepEqual(
        limits.map(({ queue, key, concurrency, running, waiting }) => [queue, key, concurrency, running, waiting]),
        [
          ["call", "acme", 1, 1, 2],
          ["call", "zed", 1, 0, 1],
        ],
      );
    });

    test("a grid shows what each stage did for each target, page by page", async (t) => {
      const one = await site(t, store);
      const ids = Array.from({ length: 7 }, (_, i) => `t${i}`);
      const grids = (version: number) =>
        pipeline("grids")
          .source(items(() => ids, { id: (id) => id }))
          .stage("read", { version: 1 }, ({ target }) => target.id)
          .stage("draft", { version, retry: { attempts: 1 } }, ({ input, cost }) => {
            if (input === "t5" && version === 2) throw new Error("no");
            cost({ usd: 0.25 });
            return input;
          })
          .gather("all", { version: 1 }, () => null);
      await (await one.hf.builds.start(grids(1))).done();
      const build = await (await one.hf.builds.start(grids(2))).done();
      const rows: GridRow[] = [];
      let after: string | undefined;
      let pages = 0;
      do {
        const query: Record<string, string> = { limit: "3", ...(after === undefined ? {} : { after }) };
        const page = await one.call<GridPage>("builds.grid", { path: { id: build.id }, query });
        assert.deepEqual(page.segments, [["read", "draft"], ["all"]]);
        rows.push(...page.rows);
        after = page.next;
        pages++;
      } while (after !== undefined);
      assert.ok(pages >= 3);
      assert.deepEqual(
        rows.map(({ target, cells }) => [target, cells["read"]?.state, cells["draft"]?.state, cells["draft"]?.cost.usd]),
        ids.map((id) => (id === "t5" ? [id, "cached", "failed", 0] : [id, "cached", "ran", 0.25])),
      );
    });

    test("the next build of a pipeline that the server knows is planned, and changes nothing", async (t) => {
      const docs = pipeline("docs")
        .source(items(() => ["a", "b"], { id: (item) => item }))
        .stage("parse", { estimate: { usd: 0.5 } }, () => 1);
      const one = await site(t, store, { pipelines: [docs] });
      assert.deepEqual(await one.call("pipelines.list"), { items: [{ name: "docs" }] });
      const plan = await one.call<Plan>("pipelines.plan", { path: { name: "docs" } });
      assert.deepEqual([plan.stages["parse"]?.run, plan.estimate], [2, { usd: 1, tokens: 0 }]);
      assert.deepEqual((await one.hf.builds.list()).items, []);
      await (await one.hf.builds.start(docs)).done();
      const after = await one.call<Plan>("pipelines.plan", { path: { name: "docs" } });
      assert.deepEqual([after.stages["parse"]?.run, after.stages["parse"]?.cached], [0, 2]);
      const refused = await errorOf(await one.fetch("api/v1/pipelines/dosc/plan"));
      assert.deepEqual([refused.status, refused.code], [404, "NO_SUCH_PIPELINE"]);
    });

    test("what happened is shown: overview, workers, recovery, audit, doctor, events", async (t) => {
      const one = await site(t, store);
      await one.call("queues.pause", { path: { name: "mail" }, body: { ahead: true } });
      await one.call("overview");
      await one.call("workers.list");
      await one.call("recovery.get");
      assert.deepEqual(await one.call("recovery.acknowledge"), { acknowledged: 0 });
      const { items: entries } = await one.call<{ items: { action: string; seq: number; subject: string }[] }>("audit.list");
      assert.deepEqual(
        entries.map(({ action, subject }) => `${action} ${subject}`),
        [
          "api.called api:POST /api/v1/recovery/acknowledge",
          "queue.paused queue:mail",
          "api.called api:POST /api/v1/queues/mail/pause",
        ],
      );
      const older = await one.call<{ items: { seq: number }[] }>("audit.list", { query: { before: "3", limit: "1" } });
      assert.deepEqual(
        older.items.map(({ seq }) => seq),
        [2],
      );
      // A number far beyond the newest entry is answered at once, too.
      const before = "999999999999999";
      assert.deepEqual((await one.call<{ items: unknown[] }>("audit.list", { query: { before } })).items.length, 3);
      await one.call("audit.verify");
      await one.call("doctor");
      const { items: events } = await one.call<{ items: { type: string }[] }>("events.list", { query: { types: "queue.*" } });
      assert.deepEqual(
        events.map(({ type }) => type),
        ["queue.paused"],
      );
    });

    test("a commit reaches an open stream", async (t) => {
      const one = await site(t, store);
      for (const path of ["api/v1/changes", "api/v1/events/stream?types=queue.*"]) {
        called.add(path.startsWith("api/v1/changes") ? "changes.stream" : "events.stream");
        const stream = await one.fetch(path);
        assert.equal(stream.headers.get("content-type"), "text/event-stream");
        const text = readUntil(stream, /\nevent: (change|queue\.paused)|^event: /);
        await one.hf.queues.pause(path);
        assert.match(await text, /event: (change|queue\.paused)\ndata: \{/);
      }
    });
  });
}

test("a job that the handler knows is enqueued by its definition", async (t) => {
  const call = job<{ customer: string }>({
    name: "call",
    queue: "out",
    retry: { attempts: 7 },
    limit: { concurrency: 1, key: ({ customer }) => customer },
    run: () => null,
  });
  const one = await site(t, "sqlite", { jobs: [call] });
  const id = await enqueue(one, { name: "call", input: { customer: "acme" } });
  assert.equal((await one.call<Job>("jobs.get", { path: { id } })).queue, "out");
  const { items: limits } = await one.call<{ items: LimitUsage[] }>("limits.list");
  assert.deepEqual(
    limits.map(({ key, waiting }) => [key, waiting]),
    [["acme", 1]],
  );
  assert.equal((await one.call<Job>("jobs.get", { path: { id: await enqueue(one, { name: "other" }) } })).queue, "other");
});

test("jobs with ids that no path can name are reached by a query", async (t) => {
  const one = await site(t);
  for (const id of ["counts", ".", "..", "-"]) {
    await enqueue(one, { name: "mail", input: 1, id });
    const at = (action = "") => `api/v1/jobs/-${action}?id=${id}`;
    assert.equal(((await (await one.fetch(at())).json()) as Job).id, id);
    assert.equal(((await (await one.fetch(at("/explain"))).json()) as Explanation).state, "pending");
    assert.deepEqual(await (await one.fetch(at("/cancel"), { method: "POST" })).json(), { changed: true });
  }
  const { items: entries } = await one.call<{ items: { subject: string }[] }>("audit.list");
  assert.ok(entries.some(({ subject }) => subject === "api:POST /api/v1/jobs/-/cancel?id=.."));
  assert.equal((await errorOf(await one.fetch("api/v1/jobs/-?id=a&id=b"))).code, "REQUEST_INVALID");
});

test("a slash at the end of an address names nothing, so that a job without an id is not the list of jobs", async (t) => {
  const one = await site(t);
  const id = await enqueue(one, { name: "mail", input: 1 });
  for (const path of ["api/v1/jobs/", "api/v1/jobs/.", "api/v1/jobs/counts/", `api/v1/jobs/${id}/`, "metrics/", "index.html/"]) {
    const response = await one.fetch(path);
    assert.equal(response.headers.get("x-frame-options"), "DENY");
    assert.deepEqual([path, (await errorOf(response)).code], [path, "NO_SUCH_ROUTE"]);
  }
});

test("a backup of a SQLite database is made by the API", async (t) => {
  const one = await site(t);
  assert.deepEqual(await one.call("backups.list"), { items: [] });
  const { path } = await one.call<{ path: string }>("backups.make");
  assert.match(path, /work\.db-backups/);
  const { items: backups } = await one.call<{ items: { file: string; reason: string }[] }>("backups.list");
  assert.deepEqual(
    backups.map(({ file, reason }) => [file, reason]),
    [[basename(path), "asked"]],
  );
});

const filesIn = (path: string) =>
  (readdirSync(path, { recursive: true }) as string[]).filter((name) => statSync(join(path, name)).isFile()).sort();

test("a build is exported as a tar archive, and nothing of it stays on the server", async (t) => {
  const one = await site(t);
  called.add("builds.export");
  const long = `${"ü".repeat(120)}.txt`;
  const docs = pipeline("docs")
    .source(items(() => ["a", "b"], { id: (one) => one }))
    .stage("draft", { version: 1 }, async ({ target, artifact }) => {
      await artifact(target.id === "a" ? "page.html" : long, `<p>${target.id}</p>`.repeat(1_000));
      return { text: target.id };
    })
    .stage("count", { version: 1 }, () => 7);
  const build = await (await one.hf.builds.start(docs)).done();
  const folder = mkdtempSync(join(tmpdir(), "holdfast-tar-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [before, temporary] = [process.env["TMPDIR"], join(folder, "temporary")];
  mkdirSync(temporary);
  // Other files of this run export at the same time.
  process.env["TMPDIR"] = temporary;
  t.after(() => (before === undefined ? delete process.env["TMPDIR"] : (process.env["TMPDIR"] = before)));
  const unpacked = async (query: string, name: string) => {
    const response = await one.fetch(`api/v1/builds/${build.id}/export${query}`);
    assert.equal(response.headers.get("content-type"), "application/x-tar");
    const out = join(folder, name);
    mkdirSync(out);
    execFileSync("tar", ["-xf", "-", "-C", out], { input: Buffer.from(await response.arrayBuffer()) });
    return out;
  };
  const all = await unpacked("", "all");
  const written = await one.hf.builds.export(build.id, join(folder, "written"));
  assert.deepEqual(filesIn(all), filesIn(written));
  for (const file of filesIn(all)) assert.deepEqual(readFileSync(join(all, file)), readFileSync(join(written, file)), file);
  assert.ok(filesIn(await unpacked("?stage=count", "count")).every((name) => !name.startsWith("draft")));
  assert.equal((await errorOf(await one.fetch(`api/v1/builds/${build.id}/export?stage=absent`))).code, "STAGE_UNKNOWN");
  assert.equal((await one.fetch(`api/v1/builds/${build.id}/export`, { method: "HEAD" })).status, 200);
  assert.deepEqual(readdirSync(temporary), []);
});

test("an artifact is downloaded, and no other path of the disk", async (t) => {
  const one = await site(t);
  called.add("artifacts.get");
  const bytes = pipeline("bytes")
    .source(items(() => ["a"], { id: (one) => one }))
    .stage("draft", { version: 1 }, async ({ artifact }) => void (await artifact("page", "<script>alert(1)</script>")));
  const build = await (await one.hf.builds.start(bytes)).done();
  const { items: stored } = await one.call<{ items: { hash: string }[] }>("builds.artifacts", { path: { id: build.id } });
  const response = await one.fetch(`api/v1/artifacts/${stored[0]?.hash}`);
  assert.equal(await response.text(), "<script>alert(1)</script>");
  assert.match(response.headers.get("content-disposition") ?? "", /^attachment/);
  assert.equal(response.headers.get("x-content-type-options"), "nosniff");
  assert.equal((await errorOf(await one.fetch("api/v1/builds/absent/artifacts"))).code, "NO_SUCH_BUILD");
  for (const path of ["../work.db", "..%2Fwork.db", "%2e%2e%2fwork.db", "0".repeat(64)])
    assert.ok((await one.fetch(`api/v1/artifacts/${path}`)).status >= 400, path);
});

test("every operation of the API is called by a test", () => {
  assert.deepEqual(
    ROUTES.map(({ id }) => id).filter((id) => !called.has(id)),
    [],
  );
});

test("the OpenAPI document describes every operation", async (t) => {
  const one = await site(t);
  const document = (await (await one.fetch("api/v1/openapi.json")).json()) as {
    openapi: string;
    paths: Record<
      string,
      Record<
        string,
        {
          operationId: string;
          parameters: { name: string; in: string }[];
          responses: { 200: { content: Record<string, object> } };
        }
      >
    >;
  };
  assert.equal(document.openapi, "3.1.0");
  const described = Object.values(document.paths).flatMap((methods) =>
    Object.values(methods).map(({ operationId }) => operationId),
  );
  assert.deepEqual(described.toSorted(), ROUTES.map(({ id }) => id).toSorted());
  const types = Object.entries(document.paths).map(([path, { get }]) => [
    path,
    Object.keys(get?.responses[200].content ?? {})[0],
  ]);
  assert.deepEqual(
    types.filter(([, type]) => type !== undefined && type !== "application/json"),
    [
      ["/builds/{id}/export", "application/x-tar"],
      ["/artifacts/{hash}", "application/octet-stream"],
      ["/events/stream", "text/event-stream"],
      ["/changes", "text/event-stream"],
    ],
  );
  const names = document.paths["/events/stream"]?.["get"]?.parameters.map(({ name, in: where }) => `${where} ${name}`);
  assert.deepEqual(names, ["query types", "query after", "header Last-Event-ID"]);
});

async function readUntil(response: Response, pattern: RegExp): Promise<string> {
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  let text = "";
  while (!pattern.test(text)) text += decoder.decode((await reader.read()).value, { stream: true });
  await reader.cancel();
  return text;
}
