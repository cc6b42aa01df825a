import type { ProcessId } from "../../../src/core/text/ids.ts";
import { open } from "../../../src/index.ts";
import type { Claimed, Store } from "../../../src/store/store.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { newLead } from "../../conformance/build-parts.ts";
import { SUCCEEDED } from "../../conformance/parts.ts";
import {
  again,
  dollars,
  ended,
  list,
  parsing,
  seeTarget,
  type Site,
  site,
  target,
  toWork,
} from "../../conformance/work-parts.ts";
import { say, told } from "./port.ts";
import { registeredProcesses } from "../../../src/store/processes.ts";

const { path, point } = told<{ point: string }>();
const operation = point.slice(0, point.indexOf(":"));

/** Two work items on their way: what is done with them, up to the point. */
async function run(store: Store, at: Site): Promise<void> {
  if (operation === "listed") {
    crashAt(point);
    return list(store, at, { targets: ["a", "b"].map((one) => target(one, toWork(at.build, "parse", one))), cursor: '"b"' });
  }
  const leases = (await parsing(store, at, ["a", "b"])) as [Claimed, Claimed];
  if (operation === "begin") crashAt(point);
  await store.work.begin(leases.map(({ job, fence }) => ({ job, fence, estimate: dollars(50) })));
  if (operation === "costs") crashAt(point);
  await store.saveProgress(leases.map(({ job, fence }) => ({ job, fence, cost: dollars(70) })));
  if (operation === "settle") crashAt(point);
  const rows = await Promise.all(["a", "b"].map((one) => seeTarget(store, one)));
  const settlements = rows.map((row, i) => {
    const { job, fence } = leases[i] as Claimed;
    const work = ended({ cost: dollars(30), target: again(row, toWork(at.build, "index", row.path)) });
    return { job, fence, outcome: SUCCEEDED, work };
  });
  await store.settle(settlements);
}

const hf = await open(path);
const { store } = hf.engine;
const holder = (await registeredProcesses(store.processes)).at(-1)?.id as ProcessId;
await run(store, await site(store, { lead: newLead(holder) }));
await say("survived");
