import { appendFileSync } from "node:fs";
import type { ProcessId } from "../../../src/core/text/ids.ts";
import { type Holdfast, open } from "../../../src/index.ts";
import { definitionOf, newJob } from "../../../src/engine/definition.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { ledBuild } from "../builds.ts";
import { after, type WorkInput, workJob } from "../jobs.ts";
import { say, told } from "./port.ts";
import { registeredProcesses } from "../../../src/store/processes.ts";

const { path, effects, acks, point } = told<{ point: string }>();
const operation = point.slice(0, point.indexOf(":"));
// So short that the keeper renews it soon.
const work = workJob(effects, { lease: operation === "renew" ? 300 : "30s" });

/** Does the operation that dies at the point; by the end of it this process should be no more. */
const SCENES: Record<string, (hf: Holdfast) => Promise<unknown>> = {
  async enqueue(hf) {
    await accepted(hf, {}, {}, {});
    crashAt(point);
    return accepted(hf, {});
  },
  async transaction(hf) {
    await accepted(hf, {});
    await hf.transaction(({ db }) => db.exec("create table orders (id integer primary key)"));
    crashAt(point);
    return hf.transaction(({ db }) => {
      db.prepare("insert into orders (id) values (?)").run(1);
      hf.enqueue(work, {}, { tx: db });
    });
  },
  async claim(hf) {
    await accepted(hf, {}, {}, {});
    crashAt(point);
    hf.work([work, after]);
    return forever();
  },
  async renew(hf) {
    await accepted(hf, { hang: true });
    // Before there is a keeper thread, which inherits it.
    crashAt(point);
    hf.work([work, after]);
    return forever();
  },
  async settle(hf) {
    await accepted(hf, {}, {});
    crashAt(point);
    hf.work([work, after]);
    return forever();
  },
  reclaim: forever,
  async checkpoint(hf) {
    await accepted(hf, { checkpoint: true });
    crashAt(point);
    hf.work([work, after]);
    return forever();
  },
  async progress(hf) {
    await accepted(hf, { progress: true, hang: true });
    crashAt(point);
    hf.work([work, after]);
    return forever();
  },
  async cancel(hf) {
    const [id] = await accepted(hf, {});
    crashAt(point);
    return hf.jobs.cancel(id as string);
  },
  async retry(hf) {
    const [id] = await accepted(hf, { fail: true });
    const worker = hf.work([work, after]);
    await hf.jobs.wait(id as string);
    await worker.stop();
    crashAt(point);
    return hf.jobs.retry(id as string);
  },
  async prune(hf) {
    // Not written down as acknowledged: it may be gone.
    const { id } = await hf.enqueue(work, {});
    await hf.jobs.cancel(id);
    crashAt(point);
    return hf.engine.store.prune({ state: "cancelled", limit: 10 });
  },
  async audit(hf) {
    await accepted(hf, {});
    crashAt(point);
    return hf.engine.store.audit.record({ action: "backup.made", name: "a backup" });
  },
  async lock(hf) {
    await accepted(hf, {});
    crashAt(point);
    return hf.lock("a lock").acquire("anna", "1h");
  },
  async acknowledge(hf) {
    const { store, self: by } = hf.engine;
    const findings = { errors: ["wrong"], commitsMissing: null, walFramesReplayed: 0 };
    const begun = await store.recoveries.begin({ dead: [], by, opening: false, alone: true, findings });
    await store.recoveries.close({ report: begun?.report as number, by, ending: { jobsPending: 0, ...findings } });
    crashAt(point);
    return hf.recovery.acknowledge();
  },
  async schedule(hf) {
    crashAt(point);
    return hf.schedule(work, { cron: "@yearly", input: {} });
  },
  async tick(hf) {
    // Once a year, and it is time.
    const template = await newJob(definitionOf(work), {});
    const rest = { timezone: "UTC", missed: "all", within: null, overlap: true } as const;
    await hf.engine.store.schedules.save({ key: "work", cron: "@yearly", nextAt: Date.now(), template, ...rest });
    crashAt(point);
    hf.work([work, after]);
    return forever();
  },
  async build(hf) {
    const holder = (await registeredProcesses(hf.engine.store.processes)).at(-1)?.id as ProcessId;
    crashAt(point);
    return hf.engine.store.builds.start(await ledBuild(work, holder));
  },
  async beat(hf) {
    const holder = (await registeredProcesses(hf.engine.store.processes)).at(-1)?.id as ProcessId;
    const build = await ledBuild(work, holder);
    await hf.engine.store.builds.start(build);
    crashAt(point);
    return hf.engine.store.builds.beat({ pipeline: build.pipeline, token: build.lead.token });
  },
  async unregister(hf) {
    await accepted(hf, {});
    crashAt(point);
    return hf.close();
  },
  migrate: forever,
  register: forever,
};

async function accepted(hf: Holdfast, ...inputs: WorkInput[]): Promise<string[]> {
  const ids: string[] = [];
  for (const input of inputs) {
    const { id } = await hf.enqueue(work, input);
    appendFileSync(acks, `${id}\n`);
    ids.push(id);
  }
  return ids;
}

function forever(): Promise<never> {
  return new Promise(() => {});
}

// Opening itself does these. Before a reclaim another process was killed while it held jobs.
if (operation === "migrate" || operation === "register" || operation === "reclaim") crashAt(point);
const hf = await open(path);
await SCENES[operation]?.(hf);
await say("survived");
