import { HoldfastError } from "../../../src/index.ts";
import { salvageWhole } from "../../../src/operator/restore.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { say, told } from "./port.ts";

/** Salvages a database, and may die on the way. */
const { path, backup, point } = told<{ backup: string; point?: string }>();
if (point !== undefined) crashAt(point);
try {
  const { epoch, kept, report } = await salvageWhole({ path, backup, driver: "node:sqlite", by: "a test", now: Date.now() });
  await say("salvaged", { epoch, kept, jobs: report.jobs });
} catch (error) {
  await say("refused", { code: error instanceof HoldfastError ? error.code : String(error) });
}
process.disconnect();
