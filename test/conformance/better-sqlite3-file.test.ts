import { betterSqliteFile } from "./stores.ts";
import { conformance } from "./suite.ts";

conformance(betterSqliteFile);
