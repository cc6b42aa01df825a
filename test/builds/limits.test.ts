import assert from "node:assert/strict";
import { items, job, pipeline } from "../../src/index.ts";
import { counts, ONCE, outputsOf, test, yard } from "./parts.ts";

/** How many run at once, by name, and how many there were at most. */
class Tally {
  readonly most: Record<string, number> = {};
  readonly #now: Record<string, number> = {};

  async during(name: string): Promise<void> {
    this.#now[name] = (this.#now[name] ?? 0) + 1;
    this.most[name] = Math.max(this.most[name] ?? 0, this.#now[name]);
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
    this.#now[name]--;
  }
}

const things = Array.from({ length: 24 }, (_, n) => ({ id: `n${n}`, tenant: n % 2 === 0 ? "even" : "odd" }));

test("a stage's limit applies by the key of its input, within its own concurrency and the build's", async (t) => {
  const here = await yard(t);
  const tally = new Tally();
  const built = await here.succeed(
    pipeline("limited")
      .source(items(() => things, { id: ({ id }) => id }))
      .stage("keyed", { limit: { key: ({ tenant }) => tenant, concurrency: 2 } }, async ({ input }) => {
        await tally.during(input.tenant);
        return input;
      })
      .stage("own", { concurrency: 3 }, async ({ input }) => {
        await tally.during("own");
        return input;
      })
      .stage("free", {}, () => tally.during("free")),
    { concurrency: 6 },
  );
  assert.deepEqual(counts(built, "free"), [24, 0, 0, 0]);
  for (const [name, most] of [
    ["even", 2],
    ["odd", 2],
    ["own", 3],
    ["free", 6],
  ] as const) {
    assert.ok((tally.most[name] ?? 0) <= most, `${tally.most[name]} ${name} at once`);
  }
});

test("identical bytes are processed once, also if a stage has limits", async (t) => {
  const here = await yard(t);
  const built = await here.succeed(
    pipeline("limited")
      .source(items(() => things, { id: ({ id }) => id, version: ({ tenant }) => tenant }))
      .stage("once", { reuse: "bytes", limit: { key: ({ tenant }) => tenant, concurrency: 4 } }, ({ input }) => {
        here.ran.push(input.tenant);
        return input.tenant;
      }),
    { concurrency: 12 },
  );
  assert.deepEqual(here.taken(), ["even", "odd"]);
  assert.deepEqual(counts(built, "once"), [2, 22, 0, 0]);
  assert.equal(Object.keys(await outputsOf(built, "once")).length, 24);
});

test("a handler past its timeout fails, and its signal aborts", async (t) => {
  const here = await yard(t);
  const reasons: string[] = [];
  const built = await here.build(
    pipeline("hung")
      .source(items(() => ["a", "b"], { id: (id) => id }))
      .stage("wait", { ...ONCE, timeout: 30 }, ({ input, signal }) => {
        if (input === "b") return input;
        return new Promise<string>((_, reject) => {
          signal.addEventListener("abort", () => {
            reasons.push((signal.reason as { code: string }).code);
            reject(signal.reason);
          });
        });
      }),
  );
  assert.deepEqual(reasons, ["TIMEOUT"]);
  assert.deepEqual(
    built.errors.map(({ target }) => target),
    ["a"],
  );
  assert.deepEqual(await outputsOf(built, "wait"), { b: "b" });
});

test("a handler's follow-ups exist with its success, and not with its failure", async (t) => {
  const here = await yard(t);
  const notify = job<string>({ name: "notify", run: () => {} });
  const built = await here.build(
    pipeline("notes")
      .source(items(() => ["a", "b"], { id: (id) => id }))
      .stage("say", ONCE, ({ input, enqueue }) => {
        enqueue(notify, input);
        if (input === "b") throw new Error("no");
        return input;
      }),
  );
  assert.equal(built.state, "FAILED");
  const { items: jobs } = await here.hf.jobs.list({ name: "notify" });
  assert.deepEqual(
    jobs.map(({ input }) => input),
    ["a"],
  );
});
