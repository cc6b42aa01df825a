import { DatabaseSync } from "node:sqlite";
import { say, told } from "./port.ts";

/** Has the file open, and knows nothing of Holdfast; it may be in the middle of reading. */
const { path, reads } = told<{ reads?: boolean }>();
const db = new DatabaseSync(path);
if (reads) db.exec("begin");
db.prepare("select count(*) from sqlite_master").get();
await say("ready");
setInterval(() => db.isOpen, 1_000);
