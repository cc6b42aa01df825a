import { nodeSqliteFile } from "./stores.ts";
import { conformance } from "./suite.ts";

conformance(nodeSqliteFile);
