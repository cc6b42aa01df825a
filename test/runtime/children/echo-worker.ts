import { job, open } from "../../../src/index.ts";

const driver = process.argv[3] === "better-sqlite3" ? "better-sqlite3" : "node:sqlite";
const hf = await open(process.argv[2], { driver });
hf.work([job<number, number>({ name: "echo", run: ({ input }) => input })], { signals: true });
process.send?.("ready");
