import { DatabaseSync } from "node:sqlite";
import { say, told } from "./port.ts";

/** Has the file open, and knows nothing of Holdfast. */
const { path } = told();
const db = new DatabaseSync(path);
db.prepare("select count(*) from sqlite_master").get();
await say("ready");
setInterval(() => db.isOpen, 1_000);
