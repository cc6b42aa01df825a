import { nodeSqliteMemory } from "./stores.ts";
import { conformance } from "./suite.ts";

conformance(nodeSqliteMemory);
