import { job, open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";

// Enqueues one job and is killed after the commit, before the commit is announced or acknowledged.
const hf = await open(process.argv[2]);
crashAt("enqueue:committed");
await hf.enqueue(job<number, number>({ name: "echo", run: ({ input }) => input }), 1);
