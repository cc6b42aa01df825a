import { AsyncLocalStorage } from "node:async_hooks";
import type { Event } from "../core/event.ts";
import { checkFunction, checkName, describeValue, invalidOption, refuseUnknown } from "../core/options.ts";
import type { Sink } from "./sinks/sink.ts";

export interface SubscribeOptions {
  /** Makes it durable: what happens while it is away reaches it when it is back. */
  name?: string;
  /** Only these: `"job.failed"`, or all that begin so, `"job.*"`. */
  types?: string[];
}

export type OnEvent = (event: Event) => void | Promise<void>;

export function checkSubscription(on: OnEvent, options: SubscribeOptions): SubscribeOptions {
  refuseUnknown(options, ["name", "types"], "subscribe");
  checkFunction(on, "The first argument of subscribe");
  const { name, types } = options;
  if (name !== undefined) checkName(name, "The name of a subscriber");
  const isList =
    Array.isArray(types) && types.length > 0 && types.every((type) => typeof type === "string" && /^[^*]+\*?$|^\*$/.test(type));
  if (types !== undefined && !isList) {
    throw invalidOption(
      `\`types\` must be a non-empty array of event types, got ${describeValue(types)}.`,
      'Give a list such as ["job.failed", "queue.*"]; a * may stand at the end only. Leave it out to get all.',
    );
  }
  return { ...(name === undefined ? {} : { name }), ...(types === undefined ? {} : { types: [...types] }) };
}

/** A function of this process as a sink: one event at a time, the next when it is done with the last. */
export class Subscriber implements Sink {
  readonly kind = "subscriber";
  readonly atOnce = 1;
  readonly #on: OnEvent;
  readonly #inside = new AsyncLocalStorage<true>();

  constructor(on: OnEvent) {
    this.#on = on;
  }

  /** Whether it is the subscriber itself that asks, from inside its own call: it cannot be waited for. */
  get isCalling(): boolean {
    return this.#inside.getStore() === true;
  }

  async deliver(events: readonly Event[]): Promise<void> {
    for (const event of events) await this.#inside.run(true, async () => this.#on(event));
  }
}
