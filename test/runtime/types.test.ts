import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { suite, test } from "node:test";
import Database from "better-sqlite3";
import * as v from "valibot";
import { z } from "zod";
import {
  type Claim,
  type Config,
  type Duration,
  type Enqueued,
  type EnqueueOptions,
  type Event,
  type Finished,
  type Holdfast,
  HoldfastError,
  job,
  type Job,
  type JobContext,
  type JobDef,
  type JobState,
  LeaseLostError,
  type Lock,
  type Log,
  NonRetryableError,
  open,
  type OpenOptions,
  type Page,
  type PostgresTx,
  type StaleStats,
  RetryAfterError,
  type SqliteHandle,
  type StandardSchema,
  type TransactionHandle,
  type Worker,
} from "../../src/index.ts";
import { call, drain } from "../../src/testing/index.ts";

/** True only when both are the very same type. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(..._proof: Same<A, B> extends true ? [] : ["these types differ", A, B]): void {}

/** What the compiler checks is never run; that this file compiles is the test. */
function compiled(_program: (hf: Holdfast) => unknown): void {}

const run = () => null;

/** A definition's types, from the outside. */
type In<D> = D extends JobDef<infer I, infer _O, infer _P> ? I : never;
type Out<D> = D extends JobDef<infer _I, infer O, infer _P> ? O : never;
type Parsed<D> = D extends JobDef<infer _I, infer _O, infer P> ? P : never;

const zodJob = job({
  name: "zod",
  input: z.object({ url: z.string(), width: z.string().transform(Number) }),
  run: ({ input }) => {
    same<typeof input, { url: string; width: number }>();
    return { area: input.width * 2 };
  },
});
const valibotJob = job({
  name: "valibot",
  input: v.pipe(
    v.string(),
    v.transform((text) => text.length),
  ),
  run: async ({ input }) => {
    same<typeof input, number>();
    return Promise.resolve([input]);
  },
});
const withOutput = job({ name: "output", input: z.string(), output: z.number() });
const plain = job({ name: "plain", run: ({ input }: JobContext<{ n: number }>) => input.n.toFixed() });
const untyped = job({ name: "untyped", run: () => null });

suite("the compiler knows", () => {
  test("the compiler knows a job's input as given, as parsed, and its output", () => {
    same<In<typeof zodJob>, { url: string; width: string }>();
    same<Parsed<typeof zodJob>, { url: string; width: number }>();
    same<Out<typeof zodJob>, { area: number }>();
    same<In<typeof valibotJob>, string>();
    same<Parsed<typeof valibotJob>, number>();
    same<Out<typeof valibotJob>, number[]>();
    same<In<typeof withOutput>, string>();
    same<Out<typeof withOutput>, number>();
    same<In<typeof plain>, { n: number }>();
    same<Out<typeof plain>, string>();
    same<In<typeof untyped>, unknown>();
    same<Out<typeof untyped>, null>();
  });

  test("the compiler knows what enqueue accepts", () => {
    compiled(async (hf) => {
      const answer = await hf.enqueue(
        zodJob,
        { url: "x", width: "1" },
        { key: "k", delay: "5m", runAt: new Date(), priority: 1 },
      );
      same<typeof answer, Enqueued<{ area: number }>>();
      // @ts-expect-error the value as given is text, not what the schema makes of it
      await hf.enqueue(zodJob, { url: "x", width: 1 });
      // @ts-expect-error a part is missing
      await hf.enqueue(zodJob, { url: "x" });
      // @ts-expect-error the input decides nothing: the definition does
      await hf.enqueue(plain, { n: "1" });
      // @ts-expect-error no such unit
      await hf.enqueue(plain, { n: 1 }, { delay: "5 minutes" });
      // @ts-expect-error an id is a text
      await hf.enqueue(plain, { n: 1 }, { id: 7 });
      // @ts-expect-error no such option
      await hf.enqueue(plain, { n: 1 }, { prioroty: 7 });
      // @ts-expect-error a name is no definition
      await hf.enqueue("plain", { n: 1 });
      const answers = await hf.enqueueMany(valibotJob, ["a"], (input, index) => {
        same<typeof input, string>();
        same<typeof index, number>();
        return { id: input };
      });
      same<typeof answers, Enqueued<number[]>[]>();
      // @ts-expect-error one of them does not fit
      await hf.enqueueMany(valibotJob, ["a", 1]);
    });
  });

  test("the compiler knows that enqueue is synchronous in a SQLite transaction and asynchronous in a PostgreSQL one", () => {
    compiled(async (hf) => {
      const node = new DatabaseSync("x");
      const better = new Database("x");
      for (const tx of [node, better, { db: node }, { db: better }]) {
        const answer = hf.enqueue(zodJob, { url: "x", width: "1" }, { tx, key: "k" });
        same<typeof answer, Enqueued<{ area: number }>>();
        // @ts-expect-error no promise: it throws, so that the transaction rolls back
        void answer.then;
      }
      const pool = { query: async (_text: string, _values: unknown[]) => Promise.resolve({ rows: [] as unknown[] }) };
      const later = hf.enqueue(plain, { n: 1 }, { tx: pool });
      same<typeof later, Promise<Enqueued<string>>>();
      const sql = { unsafe: async (_text: string, _values?: never[]) => Promise.resolve([]) };
      const postgres: PostgresTx = sql;
      same<Awaited<ReturnType<typeof hf.enqueue<{ n: number }, string>>>, Enqueued<string>>();
      // @ts-expect-error the input is checked all the same
      hf.enqueue(plain, { n: "1" }, { tx: node });
      // @ts-expect-error no transaction at all
      hf.enqueue(plain, { n: 1 }, { tx: "x" });
      // @ts-expect-error many at once have a transaction of their own
      await hf.enqueueMany(plain, [{ n: 1 }], { tx: node });
      return postgres;
    });
  });

  test("the compiler knows that hf.transaction is synchronous inside, and what it passes", () => {
    compiled(async (hf) => {
      const answer = await hf.transaction(({ db }) => {
        same<typeof db, TransactionHandle>();
        const handle: SqliteHandle = db;
        db.prepare("x").run(1, "a", null, 1n, new Uint8Array());
        db.prepare("x").all({ id: 1 });
        // @ts-expect-error no value of SQLite
        db.prepare("x").get(new Date());
        return hf.enqueue(plain, { n: 1 }, { tx: { db: handle } });
      });
      same<typeof answer, Enqueued<string>>();
      const nothing = await hf.transaction(() => {});
      same<typeof nothing, void>();
      // As the API has it, too.
      const narrow = (tx: { db: SqliteHandle }) => hf.enqueue(plain, { n: 1 }, { tx }).id;
      same<Awaited<ReturnType<typeof hf.transaction<string>>>, string>();
      await hf.transaction(narrow);
      // @ts-expect-error what is awaited would come after the commit
      await hf.transaction(async () => {});
      // @ts-expect-error what is awaited would come after the commit
      await hf.transaction(async ({ db }) => Promise.resolve(db.prepare("x").run()));
      // @ts-expect-error a promise is returned
      await hf.transaction(() => hf.enqueue(plain, { n: 1 }));
    });
  });

  test("the compiler knows what wait returns: typed by the definition, with the output of a success only", () => {
    compiled(async (hf) => {
      const ended = await hf.jobs.wait(await hf.enqueue(zodJob, { url: "x", width: "1" }), { timeout: "5s" });
      same<typeof ended, Finished<{ area: number }>>();
      if (ended.state === "succeeded") same<typeof ended.output, { area: number }>();
      else same<typeof ended.state, "failed" | "cancelled" | "quarantined">();
      // @ts-expect-error it may have failed
      const { area } = ended.output;
      const byId = await hf.jobs.wait("id");
      same<typeof byId, Finished>();
      // @ts-expect-error a finished job is not running
      const running = ended.state === "running";
      const seen = await hf.jobs.get("id");
      same<typeof seen, Job | null>();
      for await (const one of hf.jobs.watch("id")) same<typeof one, Job>();
      const page = await hf.jobs.list({ state: "pending", after: undefined });
      same<typeof page, Page<Job>>();
      // @ts-expect-error no such state
      await hf.jobs.list({ state: "done" });
      same<Awaited<ReturnType<typeof hf.jobs.counts>>, Record<JobState, number>>();
      return { area, running };
    });
  });

  test("the compiler knows what a handler gets and may return", () => {
    compiled((hf) => {
      withOutput.handle(({ input }) => input.length);
      // @ts-expect-error the output schema says number
      withOutput.handle(({ input }) => input);
      // @ts-expect-error the output schema says number
      job({ name: "x", input: z.string(), output: z.number(), run: ({ input }) => input });
      zodJob.handle(({ input }) => ({ area: input.width }));
      // @ts-expect-error a handler or an input schema must be there
      job({ name: "x" });
      // @ts-expect-error no such policy
      job({ name: "x", onInterrupt: "ignore", run: () => null });
      // @ts-expect-error a timeout cannot be none
      job({ name: "x", timeout: null, run: () => null });
      // @ts-expect-error no such unit
      job({ name: "x", retry: { delay: "1 second" }, run: () => null });
      job({
        name: "x",
        run: async (c: JobContext<string>) => {
          same<typeof c.scheduledFor, Date | null>();
          same<typeof c.signal, AbortSignal>();
          same<Awaited<ReturnType<typeof c.checkpoint.load>>, unknown>();
          const answer = c.enqueue(zodJob, { url: c.input, width: "1" }, { priority: 1 });
          same<typeof answer, { id: string }>();
          // @ts-expect-error no promise: it commits with the attempt
          void answer.then;
          // @ts-expect-error the value as given is text
          c.enqueue(zodJob, { url: c.input, width: 1 });
          // @ts-expect-error a fraction is a number
          c.progress("half");
          const spread: JobContext<string> = { ...c };
          await spread.checkpoint.save({ any: "value" });
        },
      });
      return hf.work([zodJob, valibotJob, withOutput, plain, untyped], { concurrency: 1, signals: false });
    });
  });

  test("the compiler knows a job that enqueues itself", () => {
    // Nothing has to be said twice, as long as what it returns does not come from itself.
    const crawl = job({
      name: "crawl",
      input: z.object({ url: z.string(), depth: z.number().default(0) }),
      run: async ({ input, enqueue }) => {
        same<typeof input, { url: string; depth: number }>();
        enqueue(crawl, { url: `${input.url}/next` });
        // @ts-expect-error the url is missing
        enqueue(crawl, { depth: 1 });
        return input.depth;
      },
    });
    same<In<typeof crawl>, { url: string; depth?: number | undefined }>();
    same<Out<typeof crawl>, number>();

    const silent = job({
      name: "silent",
      input: z.string(),
      run: ({ input, enqueue }) => {
        if (input.length > 0) enqueue(silent, input.slice(1));
      },
    });
    same<In<typeof silent>, string>();

    const counted = job<number>({
      name: "counted",
      run: ({ input, enqueue }) => {
        enqueue(counted, input - 1);
      },
    });
    same<In<typeof counted>, number>();

    // What it returns comes from itself: its type is named, or the handler comes after the definition.
    const named: JobDef<number, string> = job({
      name: "named",
      run: ({ input, enqueue }: JobContext<number>) => enqueue(named, input - 1).id,
    });
    same<Out<typeof named>, string>();
    const page = job({ name: "page", input: z.object({ n: z.string().transform(Number) }), output: z.string() });
    const paged = page.handle(({ input, enqueue }) => enqueue(page, { n: String(input.n + 1) }).id);
    same<typeof paged, typeof page>();
    same<Parsed<typeof paged>, { n: number }>();
    page.handle(({ enqueue }) => {
      // @ts-expect-error the input as given is text
      return enqueue(page, { n: 1 }).id;
    });
  });

  test("the compiler infers types from the definition, never from the input or the options", () => {
    compiled(async (hf) => {
      const wide = job<{ kind: "a" | "b" }>({ name: "wide", run: () => {} });
      const { id } = await hf.enqueue(wide, { kind: "a" });
      // @ts-expect-error the input may not widen the definition
      await hf.enqueue(wide, { kind: "c" });
      // @ts-expect-error nor may one among many
      await hf.enqueueMany(wide, [{ kind: "a" }, { kind: "c" }]);
      // @ts-expect-error a field that the schema does not have
      await hf.enqueue(wide, { kind: "a", more: 1 });
      // @ts-expect-error an input must be given
      await hf.enqueue(wide);
      const accepted = await hf.enqueue(zodJob, { url: "x", width: "1" });
      const many = await hf.enqueueMany(zodJob, [{ url: "x", width: "1" }]);
      const ends = await Promise.all(many.map((one) => hf.jobs.wait(one)));
      same<typeof ends, Finished<{ area: number }>[]>();
      // @ts-expect-error what is enqueued knows its output
      const wrong: Enqueued<string> = accepted;
      const told = await hf.jobs.wait<{ area: number }>(id);
      same<typeof told, Finished<{ area: number }>>();
      return wrong;
    });
  });

  test("the compiler rejects invalid definitions", () => {
    compiled(() => {
      // @ts-expect-error no such backoff
      job({ name: "x", retry: { backoff: "linear" }, run });
      // @ts-expect-error no such part of a retry
      job({ name: "x", retry: { times: 3 }, run });
      // @ts-expect-error attempts are counted
      job({ name: "x", retry: { attempts: "3" }, run });
      // @ts-expect-error no such option
      job({ name: "x", retries: 3, run });
      // @ts-expect-error a version is a number
      job({ name: "x", version: "2", run });
      // @ts-expect-error a lease is a duration
      job({ name: "x", lease: "soon", run });
      // @ts-expect-error a name must be given
      job({ run });
      // @ts-expect-error a handler gets what the schema makes of the input
      job({ name: "x", input: z.string().transform(Number), run: (c: JobContext<string>) => c.input });
      // @ts-expect-error no schema
      job({ name: "x", input: { type: "object" }, run });
      // @ts-expect-error a queue has a name
      job({ name: "x", queue: {}, run });
      // @ts-expect-error a definition's name is its own
      plain.name = "another";
    });
  });

  test("the compiler knows holdfast/testing", () => {
    compiled(async (hf) => {
      const output = await call(zodJob, { url: "x", width: "1" }, { attempt: 2 });
      same<typeof output, { area: number }>();
      // @ts-expect-error the input as given is text
      await call(zodJob, { url: "x", width: 1 });
      // @ts-expect-error no such part of a context
      await call(zodJob, { url: "x", width: "1" }, { attmpt: 2 });
      const drained = await drain(hf, [zodJob, valibotJob, plain]);
      same<typeof drained, { ran: number; failed: Job[] }>();
      // @ts-expect-error a name is no definition
      await drain(hf, ["zod"]);
    });
  });

  test("the compiler knows a config", () => {
    const config = { db: "work.db", modules: ["./jobs.ts"], durability: "process" } satisfies Config;
    // @ts-expect-error modules must be given
    const bare: Config = { db: "work.db" };
    // @ts-expect-error no such option
    const odd: Config = { modules: [], modlues: [] };
    assert.ok([config, bare, odd]);
  });

  test("the compiler knows a claim by hand", () => {
    compiled(async (hf) => {
      const claim = await hf.claim(zodJob, { worker: "me", lease: "1m", renew: "auto", exclusive: true, wait: 5 });
      same<typeof claim, Claim<{ url: string; width: string }> | null>();
      const byQueue = await hf.claim("queue", { worker: "me" });
      same<typeof byQueue, Claim | null>();
      const told = await hf.claim<{ n: number }>("queue", { worker: "me" });
      if (told !== null) same<typeof told.job.input, { n: number }>();
      await claim?.fail(new Error("no"), { retry: false, delay: "1s" });
      // @ts-expect-error the job of a definition has its input
      const wrong: number | undefined = claim?.job.input;
      // @ts-expect-error a claim may be none
      void claim.job;
      await using held: AsyncDisposable | null = byQueue;
      // @ts-expect-error who claims must be said
      await hf.claim("queue", {});
      // @ts-expect-error no such renewal
      await hf.claim("queue", { worker: "me", renew: "sometimes" });
      return [wrong, held];
    });
  });

  test("the compiler knows locks, recovery and workers", () => {
    compiled(async (hf) => {
      const lock: Lock = hf.lock("x");
      same<Awaited<ReturnType<typeof lock.acquire>>, string | null>();
      same<Awaited<ReturnType<typeof hf.recovery.stats>>, StaleStats>();
      await hf.recovery.reclaimStale("5m");
      // @ts-expect-error how long must be said
      await hf.recovery.reclaimStale();
      const worker: Worker = hf.work([plain]);
      await worker.stop({ drain: "5s" });
      await using disposable: AsyncDisposable = hf;
      return disposable;
    });
    compiled(async () => {
      const log: Log = console;
      const options: OpenOptions = { durability: "process", driver: "better-sqlite3", log, clock: { now: () => 0 } };
      same<Awaited<ReturnType<typeof open>>, Holdfast>();
      await open("x", options);
      // @ts-expect-error no such durability
      await open("x", { durability: "none" });
    });
  });

  test("the compiler knows durations and schemas", () => {
    const durations: Duration[] = [5, "500ms", "30s", "10m", "2h", "7d", "1.5s"];
    // @ts-expect-error no unit
    const bare: Duration = "5";
    const schema: StandardSchema<string, number> = v.pipe(
      v.string(),
      v.transform((text) => text.length),
    );
    const options: EnqueueOptions = { id: "a" };
    assert.ok([durations, bare, schema, options]);
  });
});

test("errors are classes that can be told apart", () => {
  const lost = new LeaseLostError("x");
  assert.ok(lost instanceof HoldfastError && lost instanceof Error);
  assert.deepEqual([lost.name, lost.code, new HoldfastError("C", "m", "h").hint], ["LeaseLostError", "LEASE_LOST", "h"]);
  for (const error of [new NonRetryableError("x"), new RetryAfterError("1s", "x")]) {
    assert.ok(error instanceof Error && !(error instanceof HoldfastError));
    assert.equal(error.message, "x");
  }
});

suite("limits, schedules and events are typed by the definition", () => {
  const Url = z.object({ url: z.string(), tenant: z.string().transform((name) => ({ name })) });
  const fetched = job({
    name: "fetched",
    input: Url,
    // What the schema makes of the input, as the handler gets it.
    limit: [{ key: ({ tenant }) => tenant.name, concurrency: 2 }, { rate: "50/m" }],
    queue: { name: "web", events: true, keep: { succeeded: "7d", failed: { age: "30d", count: 1_000 } } },
    run: ({ input }) => input.tenant.name,
  });

  test("a limit's key function gets the parsed input", () => {
    job<{ host: string }, void>({ name: "typed", limit: { key: ({ host }) => host, rate: "1/s" }, run: () => {} });
    // @ts-expect-error a key is a text
    job<{ n: number }, void>({ name: "number", limit: { key: ({ n }) => n, concurrency: 1 }, run: () => {} });
    // @ts-expect-error the input has no such field
    job<{ n: number }, void>({ name: "other", limit: { key: ({ host }) => host, concurrency: 1 }, run: () => {} });
    // @ts-expect-error no rate
    assert.throws(() => job({ name: "rate", limit: { rate: "often" }, run: () => {} }), { code: "RATE_INVALID" });
  });

  test("a schedule takes the schema's input", async () => {
    await using hf = await open(":memory:");
    await hf.schedule(fetched, { cron: "@daily", input: { url: "u", tenant: "t" } });
    // @ts-expect-error what the schema makes of it is not what goes in
    const wrong = hf.schedule(fetched, { cron: "@daily", input: { url: "u", tenant: { name: "t" } } });
    await assert.rejects(wrong, { code: "INPUT_INVALID" });
    // @ts-expect-error no input
    await assert.rejects(hf.schedule(fetched, { cron: "@daily" }), { code: "INPUT_INVALID" });
  });

  test("a subscriber gets an Event", async () => {
    await using hf = await open(":memory:");
    const stop = hf.events.subscribe((event) => same<typeof event, Event>(), { types: ["job.*"] });
    same<typeof stop, () => Promise<void>>();
    // @ts-expect-error one type is no list of them
    assert.throws(() => hf.events.subscribe(() => {}, { types: "job.*" }), HoldfastError);
  });
});
