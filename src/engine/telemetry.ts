import type * as OpenTelemetry from "@opentelemetry/api";
import type { Attributes, Context, Span, SpanContext } from "@opentelemetry/api";
import type { Outcome } from "../core/jobs/retry.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { requirePackage } from "../store/own-file.ts";
import type { Claimed, Enqueued, NewJob, Store } from "../store/store.ts";

type Api = typeof OpenTelemetry;

const SYSTEM = { "messaging.system": "holdfast" };
const TRACE = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/;

/** Emits OpenTelemetry's spans and metrics of messaging. An attempt's span links to its producer's, stored with the job. */
export class Telemetry {
  readonly #api: Api;
  readonly #tracer;
  readonly #sent;
  readonly #consumed;
  readonly #duration;
  readonly #usd;
  readonly #tokens;
  readonly #stopObserving: () => void;

  constructor(store: Store) {
    const api = (this.#api = loadApi());
    this.#tracer = api.trace.getTracer("holdfast");
    const meter = api.metrics.getMeter("holdfast");
    this.#sent = meter.createCounter("messaging.client.sent.messages", { unit: "{message}" });
    this.#consumed = meter.createCounter("messaging.client.consumed.messages", { unit: "{message}" });
    this.#duration = meter.createHistogram("messaging.process.duration", { unit: "s" });
    this.#usd = meter.createCounter("holdfast.cost.usd", { unit: "{USD}" });
    this.#tokens = meter.createCounter("holdfast.cost.tokens", { unit: "{token}" });
    const depth = meter.createObservableGauge("holdfast.queue.depth", { unit: "{job}" });
    const observe = async (result: OpenTelemetry.ObservableResult): Promise<void> => {
      const { queues } = await store.queries.overview();
      for (const { name, counts } of queues)
        for (const state of ["waiting", "pending", "running"] as const)
          result.observe(counts[state], { "messaging.destination.name": name, state });
    };
    depth.addCallback(observe);
    this.#stopObserving = () => depth.removeCallback(observe);
  }

  close(): void {
    this.#stopObserving();
  }

  async send(jobs: readonly NewJob[], write: () => Promise<Enqueued[]>): Promise<Enqueued[]> {
    const [first] = jobs;
    if (first === undefined) return write();
    const attributes = { ...SYSTEM, ...destination(first), ...operation("enqueue", "send") };
    const span = this.#start(`send ${first.queue}`, this.#api.SpanKind.PRODUCER, attributes);
    const trace = traceOf(span.spanContext());
    for (const job of jobs) job.trace = trace;
    try {
      const answers = await write();
      const [answer] = answers;
      if (jobs.length > 1) span.setAttribute("messaging.batch.message_count", jobs.length);
      else if (answer !== undefined && "id" in answer) span.setAttribute("messaging.message.id", answer.id);
      this.#sent.add(jobs.length, { ...SYSTEM, ...destination(first) });
      return answers;
    } catch (error) {
      this.#fail(span, error);
      throw error;
    } finally {
      span.end();
    }
  }

  /** Returns the context of the active span, for jobs that a handler enqueues with its success. */
  current(): string | undefined {
    const active = this.#api.trace.getActiveSpan()?.spanContext();
    return active === undefined ? undefined : traceOf(active);
  }

  process(claimed: Claimed): AttemptSpan {
    const attributes = {
      ...SYSTEM,
      ...destination(claimed),
      ...operation("run", "process"),
      "messaging.message.id": claimed.id,
      "holdfast.job.name": claimed.name,
      "holdfast.job.attempt": claimed.attempt,
    };
    const producer = claimed.trace === null ? null : contextOf(claimed.trace);
    const links = producer === null ? [] : [{ context: producer }];
    // The active span is that of whatever has let this attempt start, such as another attempt whose handler has returned.
    const outside = this.#api.ROOT_CONTEXT;
    const span = this.#start(`process ${claimed.queue}`, this.#api.SpanKind.CONSUMER, attributes, links, outside);
    const within = this.#api.trace.setSpan(outside, span);
    const queue = { ...SYSTEM, ...destination(claimed) };
    let settle: Span | null = null;
    let failed: Attributes = {};
    return {
      run: (call) => this.#api.context.with(within, call),
      finished: (outcome) => {
        if ("error" in outcome) {
          failed = { "error.type": outcome.error.name };
          this.#fail(span, outcome.error);
        }
        span.setAttribute("holdfast.outcome", outcome.kind);
        const writing = { ...queue, ...operation("settle", "settle") };
        settle = this.#start(`settle ${claimed.queue}`, this.#api.SpanKind.CLIENT, writing, [], within);
        span.end();
      },
      settled: (runMs) => {
        settle?.end();
        this.#consumed.add(1, { ...queue, ...failed });
        this.#duration.record(runMs / 1_000, { ...queue, ...failed });
      },
      lost: (reason) => {
        this.#fail(span, { name: reason, message: "The lease of the job is lost." });
        settle?.end();
        span.end();
      },
    };
  }

  cost(pipeline: string, { micros, tokens }: { micros: number; tokens: number }): void {
    if (micros > 0) this.#usd.add(micros / 1e6, { pipeline });
    if (tokens > 0) this.#tokens.add(tokens, { pipeline });
  }

  #start(
    name: string,
    kind: OpenTelemetry.SpanKind,
    attributes: Attributes,
    links: OpenTelemetry.Link[] = [],
    within?: Context,
  ): Span {
    return this.#tracer.startSpan(name, { kind, attributes, links }, within);
  }

  #fail(span: Span, error: unknown): void {
    const { name, message } = error as { name?: string; message?: string };
    span.recordException({ name: name ?? "Error", message: message ?? String(error) });
    span.setAttribute("error.type", name ?? "Error");
    span.setStatus({ code: this.#api.SpanStatusCode.ERROR, message: message ?? String(error) });
  }
}

export interface AttemptSpan {
  run<T>(call: () => T): T;
  finished(outcome: Outcome): void;
  settled(runMs: number): void;
  lost(reason: string): void;
}

function destination({ queue }: { queue: string }): Attributes {
  return { "messaging.destination.name": queue };
}

function operation(name: string, type: string): Attributes {
  return { "messaging.operation.name": name, "messaging.operation.type": type };
}

/** Formats a span as W3C's traceparent. Undefined: there is no SDK, so spans have no ids. */
function traceOf({ traceId, spanId, traceFlags }: SpanContext): string | undefined {
  return /^0+$/.test(traceId) ? undefined : `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, "0")}`;
}

function contextOf(trace: string): SpanContext | null {
  const [, traceId, spanId, flags] = TRACE.exec(trace) ?? [];
  if (traceId === undefined || spanId === undefined || flags === undefined) return null;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
}

function loadApi(): Api {
  try {
    return requirePackage("@opentelemetry/api") as Api;
  } catch (cause) {
    throw new HoldfastError(
      "TELEMETRY_MISSING",
      "`telemetry` is true, and the package @opentelemetry/api could not be loaded.",
      "Run `npm install @opentelemetry/api`, or leave `telemetry` out.",
      { cause },
    );
  }
}
