import { hash } from "node:crypto";
import type { Duration } from "../core/duration.ts";
import { HoldfastError, LeaseLostError } from "../core/errors.ts";
import type { Fence, JobKey } from "../core/ids.ts";
import { toJson } from "../core/json.ts";
import type { LeaseRef } from "../core/lease.ts";
import type { Outcome } from "../core/retry.ts";
import type { Fate } from "../store/store.ts";
import { type Claim, failureOf, leaseOf, rightOf } from "./claim.ts";
import type { Engine } from "./engine.ts";

/** A claim that was made in another process, long gone by now: whoever has its token holds the job. */
export interface HeldClaim {
  /** The job's. */
  readonly id: string;
  /** Answers until when, about. */
  renew(lease: Duration): Promise<{ expiresAt: number }>;
  succeed(output?: unknown): Promise<void>;
  fail(error: unknown, options?: { retry?: boolean; delay?: Duration }): Promise<void>;
  release(): Promise<void>;
}

/** A claim as a text. It names the attempt, so that a late one settles nothing, and the database, so that no other takes it. */
export function tokenOf(engine: Engine, claim: Claim): string {
  const { job, fence } = rightOf(claim);
  const right = `${job.toString(32)}.${fence.toString(32)}.${encode(claim.job.id)}`;
  return `${right}.${seal(engine, right)}`;
}

/** Takes up what a token stands for. Whether the lease is still held shows with the first thing that is done. */
export function heldBy(engine: Engine, token: string): HeldClaim {
  const { lease, id } = parse(engine, token);
  const settle = async (outcome: Outcome, what: string) => {
    const [fate] = await engine.store.settle([{ ...lease, outcome }]);
    refuseLost(fate, id, what);
  };
  return {
    id,
    async renew(given) {
      const millis = leaseOf(given);
      const [fate] = await engine.store.renew([{ ...lease, lease: millis }]);
      refuseLost(fate, id, "renewal");
      return { expiresAt: engine.clock.now() + millis };
    },
    succeed: async (output) => settle({ kind: "succeeded", output: toJson(output, "The output") }, "success"),
    fail: async (error, options = {}) => settle(failureOf(error, options, engine.clock), "failure"),
    release: () => settle({ kind: "released" }, "release"),
  };
}

function refuseLost(fate: Fate | undefined, id: string, what: string): void {
  if (fate !== "held") throw new LeaseLostError(id, what);
}

function parse(engine: Engine, token: string): { lease: LeaseRef; id: string } {
  const [, right, job, fence, id, sealed] =
    /^(([0-9a-v]{1,11})\.([0-9a-v]{1,11})\.([\w%~-]+))\.([0-9a-f]{12})$/.exec(token) ?? [];
  if (right === undefined || sealed !== seal(engine, right)) {
    throw new HoldfastError(
      "CLAIM_INVALID",
      `"${token}" is no claim of this database.`,
      "Give the claim as `holdfast claim` printed it, whole, and the same --db.",
    );
  }
  const lease = { job: Number.parseInt(job as string, 32) as JobKey, fence: Number.parseInt(fence as string, 32) as Fence };
  return { lease, id: decodeURIComponent(id as string) };
}

/** Against typing mistakes and other databases, where the same numbers are another job. No secret: whoever can write the file can do anything. */
function seal(engine: Engine, right: string): string {
  return hash("sha256", `${engine.store.databaseId} ${right}`).slice(0, 12);
}

/** Without a letter that means something to a shell, or ends a part. */
function encode(id: string): string {
  return encodeURIComponent(id).replace(/[.!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`);
}
