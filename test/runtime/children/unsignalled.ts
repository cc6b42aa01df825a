import { job, open } from "../../../src/index.ts";

/** A worker in a program that has its own idea of signals, or none. */
const [, , path, mode] = process.argv;
if (mode === "own") process.on("SIGTERM", () => process.send?.("heard"));
const hf = await open(path);
const hold = job({ name: "hold", run: () => new Promise(() => void process.send?.("running")) });
hf.work([hold]);
