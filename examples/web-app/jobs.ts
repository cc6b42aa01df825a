import { z } from "zod";
import { job } from "../../src/index.ts";

/** Producers need only this: the handler is given where the worker is. */
export const ship = job({
  name: "ship",
  input: z.object({ order: z.string(), items: z.number().int().min(1) }),
  output: z.object({ parcel: z.string() }),
  retry: { attempts: 5, delay: "50ms" },
});
