import * as z from "zod/mini";
import type { Duration } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { ClaimOptions } from "../../engine/claim.ts";
import { definedOnly } from "../../core/text/options.ts";
import { route } from "../route.ts";
import * as schemas from "../schemas.ts";

const { duration, text } = schemas;
const DEFAULT_LEASE: Duration = "5m";
const token = z.string().check(z.maxLength(4_000));

/** Routes for a worker in any language. They are not audited, because each job takes several calls. */
export const CLAIM_ROUTES = [
  route("post", "/claims", {
    id: "claims.claim",
    summary: "Claims a job of a queue, or of a name in any queue. `claim` is null when there is none.",
    isAudited: false,
    body: {
      queue: z.optional(text),
      name: z.optional(text),
      worker: text,
      lease: z.optional(duration),
      wait: z.optional(duration),
    },
    answer: z.object({
      claim: z.nullable(
        z.object({ token: z.string(), job: schemas.job, idempotencyKey: z.string(), leaseExpiresAt: z.number() }),
      ),
    }),
    run: async ({ operator, body, request }) => {
      const { queue, name, worker, lease = DEFAULT_LEASE, wait } = body;
      if ((queue === undefined) === (name === undefined))
        throw new HoldfastError("REQUEST_INVALID", "Give either `queue` or `name`.", "Send one of them.");
      const options = { worker, lease, ...definedOnly({ wait }) } as ClaimOptions;
      return { claim: await operator.claim(queue ?? { anyVersionOf: name as string }, options, request.signal) };
    },
  }),
  route("post", "/claims/renew", {
    id: "claims.renew",
    summary: "Makes the lease last this long from now. 409: it is lost.",
    isAudited: false,
    body: { token, lease: z.optional(duration) },
    answer: z.object({ leaseExpiresAt: z.number() }),
    run: ({ operator, body }) => operator.claimOf(body.token).renew((body.lease ?? DEFAULT_LEASE) as Duration),
  }),
  route("post", "/claims/settle", {
    id: "claims.settle",
    summary: "Ends the attempt. 409: the lease is lost, and nothing was written.",
    isAudited: false,
    body: {
      token,
      outcome: z.enum(["succeeded", "failed", "released"]),
      output: z.optional(schemas.anyJson),
      error: z.optional(z.object({ name: z.optional(z.string()), message: z.string(), code: z.optional(z.string()) })),
      retry: z.optional(z.boolean()),
      delay: z.optional(duration),
    },
    answer: schemas.done,
    run: async ({ operator, body }) => {
      const { token: held, outcome, output, error, retry, delay } = body;
      const claim = operator.claimOf(held);
      if (outcome === "succeeded") await claim.succeed(output);
      else if (outcome === "released") await claim.release();
      else {
        const thrown = Object.assign(
          new Error(error?.message ?? "The worker gave no error."),
          definedOnly({ ...error, stack: "" }),
        );
        await claim.fail(thrown, definedOnly({ retry, delay: delay as Duration | undefined }));
      }
      return { ok: true };
    },
  }),
];
