/**
 * `half-copied.ts DB`: a reader keeps the log from being copied as a whole, so that what is copied is not synced. Then
 * nothing happens.
 */
import { DatabaseSync } from "node:sqlite";
import { job, open } from "../../../src/index.ts";

const path = process.argv[2] as string;
const hf = await open(path);
const order = job<{ item: number }>({ name: "order", run: () => {} });
const accept = async (from: number) => {
  const items = Array.from({ length: 50 }, (_, i) => ({ item: from + i }));
  for (const { id } of await hf.enqueueMany(order, items)) console.log(`accepted ${id}`);
};
await accept(1);
const reader = new DatabaseSync(path);
reader.exec("begin");
reader.prepare("select count(*) from holdfast_jobs").get();
await accept(51);
const other = new DatabaseSync(path);
const { log, checkpointed } = other.prepare("pragma wal_checkpoint(passive)").get() as { log: number; checkpointed: number };
console.log(`copied ${checkpointed} of ${log}`);
setInterval(() => reader.isTransaction, 60_000);
