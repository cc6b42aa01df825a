import { job, open } from "../../../src/index.ts";

/** A worker with `signals: true` in a program that enqueues in a loop, which nothing ends, until the signal comes. */
const [, , path, mode] = process.argv;
const none = job<number, void>({ name: "none", run: () => {} });
const hf = await open(path);
hf.work([none], { signals: true });
const producer = mode === "another handle" ? await open(path) : hf;
if (mode === "another error") process.once("SIGTERM", () => void Promise.reject(new Error("a bug of the program's own")));
for (let i = 0; ; i++) {
  if (mode === "many at once") await producer.enqueueMany(none, [i, i]);
  else if (mode === "a transaction") await producer.transaction(({ db }) => void producer.enqueue(none, i, { tx: db }));
  else await producer.enqueue(none, i);
  if (i === 100) process.send?.("going");
}
