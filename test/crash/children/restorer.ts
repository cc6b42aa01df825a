import { HoldfastError } from "../../../src/index.ts";
import { restoreWhole } from "../../../src/operator/restore.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { say, told } from "./port.ts";

/** Restores a backup, and may die on the way; or so often, whenever it is not refused. */
const { path, backup, point, rounds } = told<{ backup: string; point?: string; rounds?: number }>();
if (point !== undefined) crashAt(point);
for (let done = 0; done < (rounds ?? 1);) {
  try {
    const { epoch, kept } = await restoreWhole({
      path,
      backup,
      driver: "node:sqlite",
      by: "a test",
      now: Date.now(),
      force: false,
    });
    await say("restored", { epoch, kept });
    done++;
  } catch (error) {
    const code = error instanceof HoldfastError ? error.code : String(error);
    if (rounds !== undefined && code === "IN_USE") {
      await new Promise((resume) => setTimeout(resume, 10));
      continue;
    }
    await say("refused", { code });
    break;
  }
}
process.disconnect();
