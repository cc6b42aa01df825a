import { createHash } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { job } from "../../src/index.ts";

/** Left behind by each success, in the success's own commit: a page with two receipts was committed twice. */
export const receipt = job<{ page: string }>({ name: "receipt", run: () => {} });

/** Something that takes a while and must not be paid for twice. */
export const index = job<{ page: number }, { page: number; digest: string }>({
  name: "index",
  run: async ({ input, id, signal, enqueue }) => {
    await pause(10 + (input.page % 7) * 5, undefined, { signal });
    const digest = createHash("sha256").update(`page ${input.page}`).digest("hex");
    enqueue(receipt, { page: id });
    return { page: input.page, digest };
  },
});
