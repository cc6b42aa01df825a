import { buildById } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { type Build, items, open, pipeline } from "../../src/index.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { testClock } from "../../src/testing/index.ts";
import { counts, ONCE, refusal, test, type Yard, yard } from "./parts.ts";

/** Ten things to pay for; each costs a dollar, unless said otherwise. */
function dear(
  { ran }: Yard,
  given: { budget?: object; estimate?: number | null; cost?: number; many?: number; key?: string } = {},
) {
  const { budget = { usd: 4 }, estimate = 1, cost = 1, many = 10, key = "k" } = given;
  const asked = estimate === null ? {} : { estimate: () => ({ usd: estimate }) };
  return pipeline("dear", { budget })
    .source(items(() => Array.from({ length: many }, (_, n) => n), { id: (n) => `n${n}` }))
    .stage("pay", { ...asked, key }, async ({ input, cost: pay }) => {
      ran.push(`pay ${input}`);
      await new Promise((resolve) => setImmediate(resolve));
      pay({ usd: cost, tokens: 3 });
      return input;
    });
}

test("a build pauses with a token before it would exceed its budget, and finished work is kept", async (t) => {
  const here = await yard(t);
  const built = await here.build(dear(here), { concurrency: 3 });
  assert.deepEqual([built.state, built.reason], ["BUDGET_PAUSE", "budget_precheck_block"]);
  assert.deepEqual(built.spent, { usd: 4, tokens: 12 });
  assert.deepEqual(built.budget, { usd: 4 });
  assert.match(built.token ?? "", /./);
  assert.deepEqual(counts(built, "pay"), [4, 0, 0, 6]);
  assert.equal((await here.hf.builds.get(built.id))?.token, undefined, "it is kept nowhere");
});

test("a build resumes with the token and a new budget, and pays for nothing twice", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id, token = "" } = await here.build(docs);
  const resumed = await (await here.hf.builds.resume(docs, id, { token, budget: { usd: 10 } })).done();
  assert.equal(resumed.state, "SUCCESS");
  assert.deepEqual([resumed.spent.usd, resumed.budget], [10, { usd: 10 }]);
  assert.deepEqual(counts(resumed, "pay"), [10, 0, 0, 0]);
  assert.equal(new Set(here.ran).size, here.ran.length);
});

test("a build may pause more than once, with a token for each pause", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const first = await here.build(docs);
  const resume = (token = "", usd = 0) => here.hf.builds.resume(docs, first.id, { token, budget: { usd } });
  const second = await (await resume(first.token, 6)).done();
  assert.deepEqual([second.state, second.spent.usd], ["BUDGET_PAUSE", 6]);
  assert.notEqual(second.token, first.token);
  await assert.rejects(resume(first.token, 10), refusal("TOKEN_USED"));
  assert.equal((await (await resume(second.token, 10)).done()).state, "SUCCESS");
});

test("tokens are a budget, too", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("words", { budget: { tokens: 10 } })
      .source(items(() => [1, 2, 3, 4, 5], { id: (n) => `n${n}` }))
      .stage("say", { estimate: () => ({ tokens: 4 }) }, ({ cost }) => cost({ tokens: 4 })),
  );
  assert.deepEqual([built.state, built.spent.tokens], ["BUDGET_PAUSE", 8]);
});

test("costs above the estimate exceed the budget by at most what was in flight, and the build says so", async (t) => {
  const here = await yard(t);
  const built = await here.build(dear(here, { estimate: 0.5, cost: 3, many: 30 }), { concurrency: 3 });
  assert.deepEqual([built.state, built.reason], ["BUDGET_PAUSE", "budget_exceeded"]);
  // Those that run, and those that have ended and whose end is being written.
  assert.ok(built.spent.usd > 4 && built.spent.usd <= 4 + 2 * 3 * 3, `${built.spent.usd} were spent`);
});

test("failed attempts are charged what they reported", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("frail", { budget: { usd: 100 } })
      .source(items(() => ["a"], { id: (id) => id }))
      .stage("pay", { retry: { attempts: 3, delay: 1 }, estimate: () => ({ usd: 5 }) }, ({ cost, attempt }) => {
        cost({ usd: attempt });
        throw new Error("bad luck");
      }),
  );
  assert.deepEqual([built.state, built.spent.usd], ["FAILED", 6]);
});

test("without an estimate the mean of the costs so far is reserved", async (t) => {
  const here = await yard(t);
  await here.succeed(dear(here, { budget: {}, estimate: null, cost: 2 }));
  const again = dear(here, { budget: { usd: 9 }, estimate: null, cost: 2, key: "another" });
  assert.equal((await here.hf.builds.plan(again)).estimate.usd, 20);
  const built = await here.build(again, { concurrency: 5 });
  assert.deepEqual([built.state, built.reason, built.spent.usd], ["BUDGET_PAUSE", "budget_precheck_block", 8]);
});

test("a build that exceeded its budget without an estimate asks for the mean of the costs so far as well", async (t) => {
  const here = await yard(t);
  const paused = await here.build(dear(here, { estimate: null, many: 40 }), { concurrency: 8 });
  assert.deepEqual([paused.state, paused.reason], ["BUDGET_PAUSE", "budget_exceeded"]);
  const { token = "", spent } = paused;
  const approve = (usd: number) => here.hf.builds.approve(paused.id, { token, budget: { usd } });
  await assert.rejects(approve(spent.usd), refusal("BUDGET_TOO_SMALL"));
  await approve(spent.usd + 1);
});

test("a sufficient budget never pauses a build", async (t) => {
  const here = await yard(t);
  const built = await here.succeed(dear(here, { budget: { usd: 10 } }), { concurrency: 10 });
  assert.deepEqual(built.spent, { usd: 10, tokens: 30 });
});

test("the option `budget` overrides the pipeline's", async (t) => {
  const here = await yard(t);
  const built = await here.build(dear(here), { budget: { usd: 2 } });
  assert.deepEqual([built.budget, built.spent.usd], [{ usd: 2 }, 2]);
});

test("a token is valid for an hour, then changes nothing, and another can be made", async () => {
  const clock = testClock();
  await using hf = await open(":memory:", { clock });
  const ran: string[] = [];
  const docs = dear({ ran } as Yard);
  const done = async (handle: { done(): Promise<Build> }): Promise<Build> => {
    const built = handle.done();
    const over = built.then(() => true);
    while (!(await Promise.race([over, clock.advance(50).then(() => false)])));
    return built;
  };
  const paused = await done(await hf.builds.start(docs));
  assert.equal(paused.state, "BUDGET_PAUSE");
  const { token = "" } = paused;
  const given = { token, budget: { usd: 10 } };
  await clock.advance("59m");
  // A budget that is too small is refused after the token was found good.
  await assert.rejects(hf.builds.approve(paused.id, { token, budget: { usd: 1 } }), refusal("BUDGET_TOO_SMALL"));
  await clock.advance("1m");
  const seen = async () => [await hf.builds.get(paused.id), await buildById(hf.engine.store.builds, paused.id)];
  const before = await seen();
  await assert.rejects(hf.builds.resume(docs, paused.id, given), refusal("TOKEN_EXPIRED", /expired/));
  await assert.rejects(hf.builds.approve(paused.id, given), refusal("TOKEN_EXPIRED"));
  assert.deepEqual(await seen(), before);
  assert.equal(ran.length, 4);
  const minted = await hf.builds.mintToken(paused.id);
  const resumed = await hf.builds.resume(docs, paused.id, { token: minted, budget: { usd: 10 } });
  const built = await done(resumed);
  assert.deepEqual([built.state, built.spent.usd, ran.length], ["SUCCESS", 10, 10]);
});

test("a wrong, used or foreign token changes nothing", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const paused = await here.build(docs);
  const { builds } = here.hf;
  const before = JSON.stringify(await builds.get(paused.id));
  const budget = { usd: 10 };
  const resume = (token?: string) => builds.resume(docs, paused.id, { budget, ...(token === undefined ? {} : { token }) });
  await assert.rejects(resume(), refusal("TOKEN_NEEDED"));
  await assert.rejects(resume("nonsense"), refusal("TOKEN_MALFORMED"));
  const other = await here.build(
    pipeline("other", { budget: { usd: 0 } })
      .source(items(() => [1], { id: String }))
      .stage("pay", { estimate: () => ({ usd: 1 }) }, () => 1),
  );
  await assert.rejects(resume(other.token), refusal("TOKEN_OF_ANOTHER_BUILD"));
  const now = await builds.get(paused.id);
  assert.equal(JSON.stringify(now), before);
  // A budget that is used up already is refused, and the token is not spent on it.
  await assert.rejects(
    builds.resume(docs, paused.id, { token: paused.token ?? "", budget: { usd: 4 } }),
    refusal("BUDGET_TOO_SMALL"),
  );
  assert.equal((await (await resume(paused.token)).done()).state, "SUCCESS");
});

test("a rejected token writes an audit entry with user, build and reason, and without the token", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id, token: old = "" } = await here.build(docs);
  const { builds, engine } = here.hf;
  const token = await builds.mintToken(id);
  const made = `hft_${"A".repeat(43)}`;
  const tried = [old, "hunter2", made, "", token];
  const budget = { usd: 10 };
  for (const one of tried.slice(0, 4)) await assert.rejects(builds.approve(id, { token: one, budget }));
  await assert.rejects(builds.resume(docs, id, { token: made, budget }), refusal("TOKEN_UNKNOWN"));
  await assert.rejects(builds.resume(docs, id, { token, budget: { usd: 1 } }), refusal("BUDGET_TOO_SMALL"));
  await assert.rejects(builds.resume(docs, id), refusal("TOKEN_NEEDED"), "no token was given");
  await builds.approve(id, { token, budget });
  await assert.rejects(builds.approve(id, { token, budget }), refusal("TOKEN_USED"));
  await assert.rejects(builds.approve("b00000000000000000", { token, budget }), refusal("NO_SUCH_BUILD"));
  const entries = await engine.store.audit.page({ after: 0, limit: 99, subject: id });
  const refused = entries.filter(({ action }) => action === "build.token_refused");
  assert.deepEqual(
    refused.map(({ by, before, after }) => [by, before, after]),
    ["TOKEN_REPLACED", "TOKEN_MALFORMED", "TOKEN_UNKNOWN", "BUDGET_TOO_SMALL", "TOKEN_USED"].map((code) => [
      engine.actor,
      null,
      { refused: code },
    ]),
  );
  const told = await engine.store.events.page({ after: 0, limit: 99, types: ["build.token_refused"] });
  assert.deepEqual(
    told.map(({ build, data }) => [build, data]),
    refused.map(() => [id, { build: id }]),
  );
  const text = JSON.stringify([await engine.store.audit.page({ after: 0, limit: 99 }), told]);
  for (const one of tried) assert.ok(one === "" || !text.includes(one));
  assert.equal((await verifyAudit(engine.store)).ok, true);
});

test("many wrong tokens within an hour write one audit entry for each reason", async (t) => {
  const here = await yard(t);
  const { id } = await here.build(dear(here));
  const guess = async (i: number) => {
    const token = i % 2 === 0 ? "hunter2" : `hft_${String(i).padStart(43, "A")}`;
    await assert.rejects(here.hf.builds.approve(id, { token, budget: { usd: 10 } }));
  };
  const refused = async () => {
    const entries = await here.hf.engine.store.audit.page({ after: 0, limit: 999, subject: id });
    return entries.filter(({ action }) => action === "build.token_refused").map(({ after }) => after);
  };
  for (let i = 0; i < 50; i++) await guess(i);
  assert.deepEqual(await refused(), [{ refused: "TOKEN_MALFORMED" }, { refused: "TOKEN_UNKNOWN" }]);
});

test("a new token replaces older ones", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id, token = "" } = await here.build(docs);
  const minted = await here.hf.builds.mintToken(id);
  const resume = (given: string) => here.hf.builds.resume(docs, id, { token: given, budget: { usd: 10 } });
  await assert.rejects(resume(token), refusal("TOKEN_REPLACED"));
  assert.equal((await (await resume(minted)).done()).state, "SUCCESS");
  await assert.rejects(here.hf.builds.mintToken("b00000000000000000"), refusal("NO_SUCH_BUILD"));
});

test("an approval starts nothing, and the next resume needs no token", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id, token = "" } = await here.build(docs);
  here.taken();
  const approved = await here.hf.builds.approve(id, { token, budget: { usd: 10 } });
  assert.deepEqual([approved.state, approved.budget], ["BUDGET_PAUSE", { usd: 10 }]);
  assert.deepEqual(here.taken(), []);
  await assert.rejects(here.hf.builds.approve(id, { token, budget: { usd: 11 } }), refusal("TOKEN_USED"));
  assert.equal((await (await here.hf.builds.resume(docs, id)).done()).state, "SUCCESS");
  assert.equal(here.taken().length, 6);
});

test("a paused build without approval ends FAILED, and the next build reuses what it paid for", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id, token = "", spent } = await here.build(docs);
  await assert.rejects(here.hf.builds.refuse(id, " "), refusal("BUILD_NOT_READY", /no reason was given/));
  const refused = await here.hf.builds.refuse(id, "too expensive");
  assert.deepEqual([refused.state, refused.reason], ["FAILED", "budget_refused: too expensive"]);
  assert.ok(refused.finishedAt !== undefined);
  const entries = await here.hf.engine.store.audit.page({ after: 0, limit: 99, subject: id });
  const { action, by, after } = entries.at(-1) ?? {};
  assert.deepEqual([action, by], ["build.failed", here.hf.engine.actor]);
  assert.deepEqual(after, { ...(after as object), state: "FAILED", reason: "budget_refused", note: "too expensive" });
  await assert.rejects(here.hf.builds.approve(id, { token, budget: { usd: 10 } }));
  await assert.rejects(here.hf.builds.refuse(id, "again"), refusal("BUILD_STATE"));
  await assert.rejects(here.hf.builds.refuse("b00000000000000000", "unknown"), refusal("NO_SUCH_BUILD"));
  const next = await here.build(docs, { budget: { usd: 10 } });
  assert.equal(next.state, "SUCCESS");
  assert.ok(spent.usd > 0 && next.spent.usd < 10);
});

test("a build that is not paused cannot be denied a budget", async (t) => {
  const here = await yard(t);
  const { id } = await here.build(dear(here), { budget: { usd: 10 } });
  await assert.rejects(here.hf.builds.refuse(id, "too late"), refusal("BUILD_STATE"));
});

test("no build starts while another is paused, and after it is abandoned the next reuses what it paid for", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id } = await here.build(docs);
  await assert.rejects(here.hf.builds.start(docs), refusal("BUDGET_PAUSED", new RegExp(id)));
  await assert.rejects(here.hf.builds.abandon(id, " "), refusal("BUILD_NOT_READY", /no reason was given/));
  const abandoned = await here.hf.builds.abandon(id, "too dear");
  assert.deepEqual([abandoned.state, abandoned.reason], ["ABANDONED", "too dear"]);
  const built = await here.succeed(docs, { budget: { usd: 6 } });
  assert.deepEqual([counts(built, "pay"), built.spent.usd], [[6, 4, 0, 0], 6]);
});

test("a build that will fail does not pause for its budget", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("frail", { budget: { usd: 2 }, maxFailures: 0 })
      .source(items(() => [1, 2, 3, 4], { id: (n) => `n${n}` }))
      .stage("pay", { ...ONCE, estimate: () => ({ usd: 1 }) }, ({ cost }) => {
        cost({ usd: 1 });
        throw new Error("bad");
      }),
    { concurrency: 1 },
  );
  assert.equal(built.state, "FAILED");
});

test("a paused build fails when attempts in flight leave nothing to pay for, and its token is useless", async (t) => {
  const here = await yard(t);
  const { promise: paused, resolve: isPaused } = Promise.withResolvers<void>();
  const end = here.hf.events.subscribe(() => isPaused(), { types: ["build.paused"] });
  t.after(end);
  const built = await here.build(
    pipeline("frail", { budget: { usd: 1 }, maxFailures: 0 })
      .source(items(() => [1, 2, 3, 4], { id: (n) => `n${n}` }))
      .stage("pay", { ...ONCE, estimate: ({ input }) => ({ usd: input === 1 ? 0 : 1 }) }, async ({ input, cost }) => {
        if (input !== 1) return cost({ usd: 1 });
        await paused;
        throw new Error("bad");
      }),
    { concurrency: 2 },
  );
  assert.deepEqual([built.state, built.reason, built.token], ["FAILED", "targets_failed", undefined]);
  const told = await here.hf.engine.store.events.page({ after: 0, limit: 100, build: built.id });
  assert.deepEqual(
    told.map(({ type }) => type).filter((type) => type.startsWith("build.")),
    ["build.started", "build.paused", "build.failed"],
  );
});

test("nothing stays reserved when a build has ended", async (t) => {
  const here = await yard(t);
  const docs = dear(here);
  const { id, token = "" } = await here.build(docs, { concurrency: 8 });
  const row = () => buildById(here.hf.engine.store.builds, id);
  assert.deepEqual((await row())?.reserved, { micros: 0, tokens: 0 });
  await (await here.hf.builds.resume(docs, id, { token, budget: { usd: 10 } })).done();
  assert.deepEqual((await row())?.reserved, { micros: 0, tokens: 0 });
});
