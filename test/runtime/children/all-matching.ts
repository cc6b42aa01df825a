// Changes all failed jobs, and kills itself at a point: node all-matching.ts PATH retry|cancel|remove POINT
import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";

const [path, action, point] = process.argv.slice(2) as [string, "retry" | "cancel" | "remove", string];
const hf = await open(path, { log: false });
crashAt(point);
await hf.jobs[`${action}All`]({ name: "work" });
