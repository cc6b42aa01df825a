import { z } from "zod";
import { job } from "../../src/index.ts";

/** No handler: it is claimed by hand, one at a time over all processes. */
export const merge = job({ name: "merge", input: z.object({ branch: z.string() }) });
