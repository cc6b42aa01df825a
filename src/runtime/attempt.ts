import { HoldfastError, LeaseLostError } from "../core/errors.ts";
import { followUpId } from "../core/ids.ts";
import { fromJson, toJson } from "../core/json.ts";
import type { Claimed, NewJob } from "../store/store.ts";
import type { JobContext } from "./context.ts";
import { type Definition, definitionOf } from "./definition.ts";
import type { Engine, Owner } from "./engine.ts";
import type { LossReason } from "./keeper.ts";
import { logFor } from "./log.ts";
import { newJob } from "./new-job.ts";
import type { ProgressWriter } from "./progress.ts";

export type AbortCode = "LEASE_LOST" | "CANCELLED" | "TIMEOUT" | "STOPPING";

/** One attempt at one job in this process: its lease, its signal, what it wants to commit with its success. */
export class Attempt implements Owner {
  readonly claimed: Claimed;
  readonly def: Definition;
  slot = -1;
  /** Set when the lease is gone: whatever the handler does now is in vain. */
  lost: LossReason | null = null;
  followUps: NewJob[] | undefined;
  readonly #onLoss: (attempt: Attempt) => void;
  #controller: AbortController | undefined;
  #aborted: AbortCode | undefined;

  constructor(claimed: Claimed, def: Definition, onLoss: (attempt: Attempt) => void) {
    this.claimed = claimed;
    this.def = def;
    this.#onLoss = onLoss;
  }

  get lease(): Claimed {
    return this.claimed;
  }

  /** Made when it is first asked for: most handlers of short jobs never do. */
  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.#aborted !== undefined) this.#controller.abort(abortReason(this.#aborted, this.claimed.id));
    }
    return this.#controller.signal;
  }

  abort(code: AbortCode): void {
    this.#aborted ??= code;
    this.#controller?.abort(abortReason(code, this.claimed.id));
  }

  /** The handler threw because it was told to stop. */
  gaveUp(error: unknown): boolean {
    return this.#aborted !== undefined && (error === this.#controller?.signal.reason || isAbortError(error));
  }

  lose(reason: LossReason): void {
    this.lost = reason;
    if (reason !== "GIVEN_BACK") this.abort(reason);
    this.#onLoss(this);
  }
}

/** What the handler sees. The accessors keep a job that uses none of it cheap. */
export function contextFor(engine: Engine, progress: ProgressWriter, attempt: Attempt, input: unknown): JobContext<unknown> {
  const { claimed } = attempt;
  return {
    input,
    id: claimed.id,
    attempt: claimed.attempt,
    scheduledFor: null,
    get idempotencyKey() {
      return `${engine.store.databaseId}:${claimed.id}`;
    },
    get log() {
      return logFor(engine.log, { job: claimed.id, name: claimed.name, attempt: claimed.attempt });
    },
    get signal() {
      return attempt.signal;
    },
    get checkpoint() {
      return {
        load: async () => fromJson(await engine.store.loadCheckpoint(claimed.job)),
        save: async (value: unknown) => {
          const text = toJson(value, "The checkpoint");
          if (attempt.lost !== null || (await engine.store.saveCheckpoint(claimed, text)) !== "held") {
            throw new LeaseLostError(claimed.id, "checkpoint");
          }
        },
      };
    },
    get progress() {
      return (fraction: number, message?: string) => progress.report(claimed, fraction, message);
    },
    get enqueue() {
      return (def: unknown, value: unknown, options?: object) => {
        const definition = definitionOf(def);
        const job = newJob(definition, value, options);
        if (job instanceof Promise) {
          job.catch(() => {});
          throw new HoldfastError(
            "SCHEMA_ASYNC",
            `The schema of job "${definition.name}" validates asynchronously, and a handler's enqueue cannot wait.`,
            "Use a synchronous schema for it, or hf.enqueue, which commits at once.",
          );
        }
        const followUps = (attempt.followUps ??= []);
        if (job.id === undefined) job.followUpId = followUpId(engine.clock.now(), claimed.job, claimed.fence, followUps.length);
        followUps.push(job);
        return { id: (job.id ?? job.followUpId) as string };
      };
    },
  };
}

export function abortReason(code: AbortCode, id: string): HoldfastError {
  switch (code) {
    case "LEASE_LOST":
      return new LeaseLostError(id);
    case "CANCELLED":
      return new HoldfastError("CANCELLED", `Job ${id} was cancelled.`, "Stop working on it; nothing more of it will be kept.");
    case "TIMEOUT":
      return new HoldfastError(
        "TIMEOUT",
        `Job ${id} ran past its timeout.`,
        "Stop working on it, or give the job a longer `timeout`.",
      );
    case "STOPPING":
      return new HoldfastError(
        "STOPPING",
        `The worker is stopping, and job ${id} goes back.`,
        "Stop working on it; it will be run again.",
      );
  }
}

/** What `fetch`, timers and streams throw when their signal aborts without passing the reason on. */
function isAbortError(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}
