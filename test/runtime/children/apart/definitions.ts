import { z } from "zod";
import { job } from "../../../../src/index.ts";

/** What producers and workers share. */
export const greet = job({ name: "greet", queue: "mail", version: 3, input: z.object({ to: z.string() }), output: z.string() });
