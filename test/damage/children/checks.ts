/** Opens a database, lets one read of it fail during a quick check, and says whether a job can be enqueued after it. */
import { existsSync, writeFileSync } from "node:fs";
import { job, open } from "../../../src/index.ts";
import { silent } from "../place.ts";

const [path = ""] = process.argv.slice(2);
const trigger = process.env["FAULT_TRIGGER"] as string;
const greet = job<{ name: string }>({ name: "greet", run: () => {} });
const hf = await open(path, { log: silent });
writeFileSync(trigger, "");
const { findings } = await hf.engine.store.damage.check("quick");
const hasFailed = !existsSync(trigger);
const enqueued = await hf.enqueue(greet, { name: "me" }).then(
  () => true,
  (error: { code: string }) => error.code,
);
await hf.close();
console.log(JSON.stringify({ findings, hasFailed, enqueued }));
