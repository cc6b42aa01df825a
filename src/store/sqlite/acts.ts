import { subjectOf } from "../../core/audit.ts";
import type { Act } from "../audit.ts";
import type { Audit } from "./audit.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";

/** What an operator does is always told, and always written down: an event and an entry of the audit, of the same name. */
export class Acts {
  readonly #audit: Audit;
  readonly #events: Events;

  constructor(parts: { audit: Audit; events: Events }) {
    this.#audit = parts.audit;
    this.#events = parts.events;
  }

  /** `data`: what is told of it, where that is more than its name. */
  add(tx: Tx, { action, name, build, before, after }: Act, data?: object): void {
    this.#audit.add(tx, { action, subject: build ?? subjectOf(action, name), before, after });
    this.#events.act(tx, action, name, data, build);
  }
}
