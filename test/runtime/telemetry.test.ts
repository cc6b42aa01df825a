import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, test } from "node:test";
import { context, metrics, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, type ReadableSpan, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { type Holdfast, items, job, open, pipeline } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";

const spans = new InMemorySpanExporter();
const exported = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const reader = new PeriodicExportingMetricReader({ exporter: exported, exportIntervalMillis: 2 ** 30 });
const folder = mkdtempSync(join(tmpdir(), "holdfast-telemetry-"));
let server: PostgresServer | null = null;

before(async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] }));
  metrics.setGlobalMeterProvider(new MeterProvider({ readers: [reader] }));
  if (noServer === false) server = await startServer();
});
after(async () => {
  await server?.close();
  rmSync(folder, { recursive: true, force: true });
});
beforeEach(() => spans.reset());

let files = 0;
for (const store of ["sqlite", "postgres"] as const) {
  describe(`with telemetry on ${store}`, store === "postgres" && noServer !== false ? { skip: noServer } : {}, () => {
    test("the span of an attempt links to its producer's span, and spans of the handler are inside it", async () => {
      await using hf = await opened(store);
      const tracer = trace.getTracer("app");
      const mail = job({ name: "mail", run: async () => tracer.startActiveSpan("smtp", (span) => span.end()) });
      const { id } = await hf.enqueue(mail, 1);
      await drain(hf, [mail]);
      const [send, process, settle, smtp] = ["send mail", "process mail", "settle mail", "smtp"].map(spanNamed);
      assert.deepEqual([send?.kind, process?.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER]);
      assert.deepEqual(
        process?.links.map(({ context: { spanId, traceId } }) => [traceId, spanId]),
        [[send?.spanContext().traceId, send?.spanContext().spanId]],
      );
      for (const within of [settle, smtp]) assert.equal(within?.parentSpanContext?.spanId, process?.spanContext().spanId);
      assert.deepEqual(send?.attributes, {
        "messaging.system": "holdfast",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.message.id": id,
      });
      assert.equal(process?.attributes["messaging.message.id"], id);
      assert.equal((await hf.jobs.get(id))?.state, "succeeded");
      assert.ok(!JSON.stringify(await hf.jobs.get(id)).includes(send?.spanContext().traceId ?? "?"));
    });

    test("a job that a handler enqueues links to that attempt", async () => {
      await using hf = await opened(store);
      const second = job({ name: "second", run: () => null });
      const first = job({ name: "first", run: ({ enqueue }) => void enqueue(second, 1) });
      await hf.enqueue(first, 1);
      await drain(hf, [first, second]);
      assert.equal(spanNamed("process second")?.links[0]?.context.spanId, spanNamed("process first")?.spanContext().spanId);
    });

    test("the span of an attempt is inside no other span, whatever the process does when it starts", async () => {
      await using hf = await opened(store);
      const docs = pipeline("docs")
        .source(items(() => Array.from({ length: 50 }, (_, i) => ({ i })), { id: ({ i }) => String(i) }))
        .stage("number", {}, ({ input }) => input.i)
        .stage("double", {}, ({ input }) => 2 * input);
      await trace.getTracer("app").startActiveSpan("app", async (span) => {
        await (await hf.builds.start(docs, { concurrency: 1 })).done();
        span.end();
      });
      const processed = spans.getFinishedSpans().filter(({ kind }) => kind === SpanKind.CONSUMER);
      assert.equal(processed.length, 101);
      assert.deepEqual(
        processed.filter(({ parentSpanContext }) => parentSpanContext !== undefined).map(({ name }) => name),
        [],
      );
    });

    test("a failure is an error of the span, and a rejected enqueue one of the producer's span", async () => {
      await using hf = await opened(store);
      const fails = job({ name: "fails", retry: { attempts: 1 }, run: () => Promise.reject(new TypeError("no")) });
      await hf.enqueue(fails, 1, { id: "a" });
      await drain(hf, [fails]);
      const span = spanNamed("process fails");
      assert.deepEqual(span?.status, { code: SpanStatusCode.ERROR, message: "no" });
      assert.equal(span?.attributes["error.type"], "TypeError");
      assert.equal(span?.events[0]?.name, "exception");
      await assert.rejects(hf.enqueue(job({ name: "other", run: () => null }), 1, { id: "a" }), { code: "ID_TAKEN" });
    });

    test("sent, consumed, durations, depth and cost are metrics", async () => {
      await using hf = await opened(store);
      const counted = job({ name: `counted-${store}`, run: () => null });
      await hf.enqueueMany(counted, [1, 2, 3]);
      assert.equal((await metric("holdfast.queue.depth", { state: "pending" }, `counted-${store}`))?.value, 3);
      await drain(hf, [counted]);
      const paid = pipeline(`paid-${store}`)
        .source(items(() => ["a"], { id: (one) => one }))
        .stage("draft", { version: 1 }, ({ cost }) => void cost({ usd: 0.5, tokens: 20 }));
      await (await hf.builds.start(paid)).done();
      assert.equal((await metric("messaging.client.sent.messages", {}, `counted-${store}`))?.value, 3);
      assert.equal((await metric("messaging.client.consumed.messages", {}, `counted-${store}`))?.value, 3);
      const duration = (await metric("messaging.process.duration", {}, `counted-${store}`))?.value as unknown as {
        count: number;
      };
      assert.equal(duration.count, 3);
      const usd = await points("holdfast.cost.usd");
      assert.ok(usd.some(({ value, attributes }) => value === 0.5 && String(attributes["pipeline"]).includes(`paid-${store}`)));
    });
  });
}

test("without telemetry nothing is traced and nothing is stored", async () => {
  await using hf = await open(join(folder, "off.db"), { log: false });
  const mail = job({ name: "mail", run: () => null });
  await hf.enqueue(mail, 1);
  const request = { from: [{ name: "mail", lease: 1_000 }], max: 1, holder: null, worker: "anna" };
  assert.equal((await hf.engine.store.claim(request))[0]?.trace, null);
  await hf.enqueue(mail, 2);
  await drain(hf, [mail]);
  assert.deepEqual(spans.getFinishedSpans(), []);
});

async function opened(store: "sqlite" | "postgres"): Promise<Holdfast> {
  const where = store === "sqlite" ? join(folder, `${files++}.db`) : await (server as PostgresServer).createDatabase();
  return open(where, { telemetry: true, log: false, artifacts: join(folder, "artifacts") });
}

function spanNamed(name: string): ReadableSpan | undefined {
  return spans.getFinishedSpans().find((span) => span.name === name);
}

async function points(name: string): Promise<{ value: unknown; attributes: Record<string, unknown> }[]> {
  await reader.forceFlush();
  const last =
    exported
      .getMetrics()
      .at(-1)
      ?.scopeMetrics.flatMap((scope) => scope.metrics) ?? [];
  return last.find(({ descriptor }) => descriptor.name === name)?.dataPoints ?? [];
}

async function metric(name: string, labels: object, queue: string): Promise<{ value: unknown } | undefined> {
  const wanted = Object.entries({ ...labels, "messaging.destination.name": queue });
  return (await points(name)).find(({ attributes }) => wanted.every(([label, value]) => attributes[label] === value));
}
