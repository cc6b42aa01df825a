/** `copying.ts DB`: takes orders without end, and copies the log after each, in a thread of its own and in this one. */
import { DatabaseSync } from "node:sqlite";
import { isMainThread, Worker, workerData } from "node:worker_threads";
import { job, open } from "../../../src/index.ts";

if (isMainThread) {
  const path = process.argv[2] as string;
  const hf = await open(path);
  const copier = new Worker(new URL(import.meta.url), { workerData: path });
  await new Promise((resolve) => copier.once("message", resolve));
  const order = job<{ item: number }>({ name: "order", run: () => {} });
  for (let item = 1; ; item++) {
    const { id } = await hf.enqueue(order, { item });
    console.log(`accepted ${id}`);
  }
} else {
  const db = new DatabaseSync(workerData as string, { timeout: 5_000 });
  const copy = db.prepare("pragma wal_checkpoint(passive)");
  const { parentPort } = await import("node:worker_threads");
  parentPort?.postMessage("ready");
  for (;;) copy.get();
}
