import { job, open } from "../../../src/index.ts";

const hf = await open(process.argv[2], process.argv[3] === "better-sqlite3" ? { driver: "better-sqlite3" } : {});
hf.work([job<number, number>({ name: "echo", run: ({ input }) => input })], { signals: true });
process.send?.("ready");
