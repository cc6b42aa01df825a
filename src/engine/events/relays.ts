import { AsyncLocalStorage } from "node:async_hooks";
import { resolve } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { checkEventTypes, type Event } from "../../core/jobs/event.ts";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import { checkName, checkOneOf, describeValue, invalidOption, refuseUnknown } from "../../core/text/options.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../log.ts";
import type { Janitor } from "../maintenance/janitor.ts";
import { DurablePosition, transientPosition } from "./position.ts";
import { Relay } from "./relay.ts";
import { consoleSink, fileSink, type Sink, webhookSink } from "./sinks.ts";

interface Parts {
  store: Store;
  clock: Clock;
  log: Log;
  self: ProcessId;
  janitor: Janitor;
  mode: () => number;
}

interface Shared {
  settings: CheckedSink;
  relay: Relay;
  users: number;
}

export class Relays {
  readonly #parts: Parts;
  readonly #sinks = new Map<string, Shared>();
  readonly #subscribers = new Set<string>();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Starts the sinks of a handle; the returned function releases them. */
  async use(sinks: ReadonlyMap<string, CheckedSink>): Promise<() => Promise<void>> {
    for (const [name, settings] of sinks) {
      const known = this.#sinks.get(name);
      if (known !== undefined && !isDeepStrictEqual(known.settings, settings)) {
        throw new HoldfastError(
          "SINK_DIFFERS",
          `This process has the sink "${name}" open with other settings.`,
          "Give the sink the same settings in every open(), or another name.",
        );
      }
      if (this.#subscribers.has(name)) throw nameTaken(name, "subscriber");
    }
    const used = [...sinks].map(([name, settings]) => this.#share(name, settings));
    const stop = async () => {
      await Promise.all(used.map((name) => this.#release(name)));
    };
    try {
      await Promise.all(used.map((name) => this.#sinks.get(name)?.relay.opened));
    } catch (error) {
      await stop();
      throw error;
    }
    return stop;
  }

  /** Subscribes a function to the events after the position `from`. Default: from now on. */
  subscribe(on: OnEvent, options: SubscribeOptions, from?: number): Subscription {
    const { name, types } = checkSubscription(on, options);
    if (name !== undefined && this.#sinks.has(name)) throw nameTaken(name, "sink");
    const { store, clock, log } = this.#parts;
    const position =
      name === undefined
        ? transientPosition(() => (from === undefined ? store.events.position() : Promise.resolve(from)))
        : this.#positionOf(name, SUBSCRIBER);
    if (name !== undefined) this.#subscribers.add(name);
    const relay = { store, clock, log, name: name ?? "a subscriber", position, types };
    return new Subscription(on, (sink) => new Relay({ ...relay, sink }));
  }

  #share(name: string, settings: CheckedSink): string {
    const known = this.#sinks.get(name);
    if (known !== undefined) known.users++;
    else {
      const { store, clock, log } = this.#parts;
      const sink = makeSink(settings, clock, this.#parts.mode());
      const relay = new Relay({ store, clock, log, name, position: this.#positionOf(name, sink.kind), sink });
      this.#sinks.set(name, { settings, relay, users: 1 });
    }
    return name;
  }

  async #release(name: string): Promise<void> {
    const shared = this.#sinks.get(name);
    if (shared === undefined || --shared.users > 0) return;
    this.#sinks.delete(name);
    await shared.relay.stopSoon();
  }

  /** Returns a stored position. It starts the janitor, which notices that an earlier holder died, and trims the outbox. */
  #positionOf(name: string, kind: string): DurablePosition {
    const { store, clock, self, janitor } = this.#parts;
    janitor.start();
    return new DurablePosition({ store, clock, self, name, kind });
  }
}

const SUBSCRIBER = "subscriber";

/** A sink that calls a function. It keeps the process alive, as a worker does: a program that only subscribes does nothing else. */
export class Subscription implements Sink {
  readonly kind = SUBSCRIBER;
  readonly maxEvents = 1;
  readonly #on: OnEvent;
  readonly #relay: Relay;
  readonly #inside = new AsyncLocalStorage<true>();
  readonly #stay = setInterval(() => {}, 2 ** 30);

  constructor(on: OnEvent, relayTo: (sink: Sink) => Relay) {
    this.#on = on;
    this.#relay = relayTo(this);
  }

  async deliver(events: readonly Event[]): Promise<void> {
    for (const event of events) await this.#inside.run(true, async () => this.#on(event));
  }

  /** Resolves when the call in flight is done; a subscriber that ends itself does not wait for itself. */
  async end(): Promise<void> {
    clearInterval(this.#stay);
    const over = this.#relay.stop();
    if (!this.#inside.getStore()) await over;
  }

  async endSoon(): Promise<void> {
    clearInterval(this.#stay);
    if (this.#inside.getStore()) this.#relay.abandon();
    else await this.#relay.stopSoon();
  }
}

/** Rejects a sink and a subscriber of one name: they would share a position, and each event would reach only one of them. */
function nameTaken(name: string, kind: string): HoldfastError {
  return new HoldfastError("NAME_TAKEN", `There is a ${kind} of the name "${name}" already.`, "Give it another name.");
}

export interface SubscribeOptions {
  /** Name of a durable subscriber: its position is stored, and it gets what happened while it was away. Default: not durable. */
  name?: string;
  /** Types to deliver, such as "job.failed", or "job.*" for all that begin so. Default: all. */
  types?: string[];
}

export type OnEvent = (event: Event) => void | Promise<void>;

function checkSubscription(on: OnEvent, options: SubscribeOptions): SubscribeOptions {
  if (typeof on !== "function") {
    throw invalidOption(
      `The first argument of events.subscribe must be a function, got ${describeValue(on)}.`,
      "Call events.subscribe(on, { types }), where `on` is a function of an event.",
    );
  }
  refuseUnknown(options, ["name", "types"], "events.subscribe");
  const { name, types } = options;
  if (name !== undefined) checkName(name, "The name of a subscriber");
  const isList =
    Array.isArray(types) && types.length > 0 && types.every((type) => typeof type === "string" && /^[^*]+\*?$|^\*$/.test(type));
  if (types !== undefined && !isList) {
    throw invalidOption(
      `\`types\` must be a non-empty array of event types, got ${describeValue(types)}.`,
      'Give a list such as ["job.failed", "queue.*"]; only the end may be a *. Leave it out to get all types.',
    );
  }
  checkEventTypes(types ?? []);
  return { ...(name === undefined ? {} : { name }), ...(types === undefined ? {} : { types: [...types] }) };
}

/** Where events go, as given to `open`. */
export type SinkOptions =
  | {
      /** "console": a JSON line on standard output. "file": a line at the end of a file. "webhook": a signed POST. */
      type: "console";
    }
  | {
      type: "file";
      /** "file": path of the file. */
      path: string;
    }
  | {
      type: "webhook";
      /** "webhook": address that gets one POST per event. */
      url: string;
      /** "webhook": key of the signature by Standard Webhooks, `whsec_` and base64. */
      secret: string;
    };

type CheckedSink = { type: "console" } | { type: "file"; path: string } | { type: "webhook"; url: URL; secret: Buffer };

/** Rejects invalid settings at `open`; an unreachable receiver shows at the first delivery. */
export function checkSinks(sinks: Record<string, SinkOptions> | undefined): Map<string, CheckedSink> {
  if (sinks === undefined) return new Map();
  if (typeof sinks !== "object" || sinks === null || Array.isArray(sinks)) {
    throw invalidOption(
      `\`sinks\` must be an object, got ${describeValue(sinks)}.`,
      'Give an object of names, e.g. { audit: { type: "file", path: "events.jsonl" } }.',
    );
  }
  return new Map(Object.entries(sinks).map(([name, options]) => [checkName(name, "A sink's name"), checkSink(name, options)]));
}

function makeSink(checked: CheckedSink, clock: Clock, mode: number): Sink {
  switch (checked.type) {
    case "console":
      return consoleSink();
    case "file":
      return fileSink(checked.path, mode);
    case "webhook":
      return webhookSink(checked, clock);
  }
}

const SINK_OPTIONS = { console: ["type"], file: ["type", "path"], webhook: ["type", "url", "secret"] } as const;

function checkSink(name: string, options: SinkOptions): CheckedSink {
  const where = `sink "${name}"`;
  if (typeof options !== "object" || options === null) {
    throw invalidOption(
      `The ${where} must be an object, got ${describeValue(options)}.`,
      'Give an object with its `type`, e.g. { type: "console" }.',
    );
  }
  checkOneOf(options.type, ["console", "file", "webhook"], `The type of ${where}`);
  refuseUnknown(options, SINK_OPTIONS[options.type], `A ${options.type} sink`);
  switch (options.type) {
    case "console":
      return { type: "console" };
    case "file":
      return { type: "file", path: checkPath(options.path, where) };
    case "webhook":
      return { type: "webhook", url: checkUrl(options.url, where), secret: checkSecret(options.secret, where) };
  }
}

/** Resolves the path now, because the working directory may change. */
function checkPath(path: unknown, where: string): string {
  if (typeof path === "string" && path !== "" && !path.includes("\0")) return resolve(path);
  throw invalidOption(`The path of ${where} must be a path, got ${describeValue(path)}.`, 'Give a path, e.g. "events.jsonl".');
}

/** Addresses may hold secrets, so the errors do not repeat them. */
function checkUrl(given: unknown, where: string): URL {
  const url = typeof given === "string" && URL.canParse(given) ? new URL(given) : null;
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) {
    throw invalidOption(`The url of ${where} must be an http or https address.`, 'Give one, e.g. "https://example.com/hooks".');
  }
  if (url.username !== "" || url.password !== "") {
    throw invalidOption(
      `The url of ${where} has a user name or password in it.`,
      "Leave them out; the receiver authenticates each request by its signature.",
    );
  }
  return url;
}

function checkSecret(given: unknown, where: string): Buffer {
  const text = typeof given === "string" ? /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(given)?.[1] : undefined;
  const secret = Buffer.from(text ?? "", "base64");
  if (secret.length >= 24 && secret.length <= 64) return secret;
  throw invalidOption(
    `The secret of ${where} is not a secret of Standard Webhooks.`,
    "Give whsec_ and the base64 of 24 to 64 random bytes; `openssl rand -base64 32` prints some.",
  );
}
