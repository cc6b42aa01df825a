import { betterSqliteFile } from "./stores.ts";
import { conformance } from "./suite.ts";

// The same SQL as over node:sqlite, where every case runs: what differs is the driver.
conformance(betterSqliteFile, { every: 4 });
