import { open } from "../../../src/index.ts";
import { render } from "../jobs.ts";
import { say, told } from "./port.ts";

/** A deploy: one program that knows one version of a job. */
const { path, version } = told<{ version: number }>();
const hf = await open(path);
const def = render(version, async ({ input, id, attempt }) => {
  await say("started", { id, attempt });
  if (input.hang && attempt === 1) await new Promise(() => {});
  return { version, pid: process.pid };
});
hf.work([def], { signals: true });
await say("ready");
