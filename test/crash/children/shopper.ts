import { DatabaseSync } from "node:sqlite";
import Better from "better-sqlite3";
import { open, type TransactionHandle } from "../../../src/index.ts";
import { workJob } from "../jobs.ts";
import { say, told } from "./port.ts";

/** Writes a row of its own and a job in one transaction, and kills itself on the way. */
const { path, effects, driver, by, dies } = told<{
  driver: "node:sqlite" | "better-sqlite3";
  by: "hf.transaction" | "a handle";
  dies: "before the job" | "before the commit" | "after the commit";
}>();
const work = workJob(effects);
const hf = await open(path, { driver });

if (by === "hf.transaction") await hf.transaction(({ db }) => shop(db));
else {
  const db = driver === "node:sqlite" ? new DatabaseSync(path) : new Better(path);
  db.exec("pragma synchronous = full; begin immediate");
  shop(db as TransactionHandle);
  db.exec("commit");
}
if (dies === "after the commit") die();
await say("survived");

function shop(db: TransactionHandle): void {
  db.prepare("insert into orders (id) values (?)").run(1);
  if (dies === "before the job") die();
  hf.enqueue(work, {}, { tx: db });
  if (dies === "before the commit") die();
}

function die(): void {
  process.kill(process.pid, "SIGKILL");
}
