import { existsSync, writeFileSync } from "node:fs";
import { items, job, open, pipeline } from "holdfast";

// What is bundled: one program, told by its arguments what to do with which database. It prints how each went.
const [, , database, ...wishes] = process.argv;
const RELEASE = "release";

/** Blocks its process until there is a file, as a handler that computes does. */
const block = job({
  name: "block",
  lease: "500ms",
  run: () => {
    writeFileSync("starts", `${process.pid}\n`, { flag: "a" });
    const cell = new Int32Array(new SharedArrayBuffer(4));
    while (!existsSync(RELEASE)) Atomics.wait(cell, 0, 0, 20);
  },
});

export const isolated = pipeline("isolated", { module: import.meta.url ?? "file:///bundle.cjs" })
  .source(items(() => ["a"], { id: String }))
  .stage("upper", { isolate: "process", retry: { attempts: 1 } }, ({ input }) => input.toUpperCase());

const errors = [];
const log = { debug() {}, info() {}, warn() {}, error: (message, data) => errors.push({ message, ...data }) };

const actions = {
  enqueue: async (hf) => (await hf.enqueue(block, 1)).id,
  counts: (hf) => hf.jobs.counts(),
  work: async (hf) => {
    hf.work([block]);
    for (const { id } of (await hf.jobs.list()).items) await hf.jobs.wait(id);
  },
  claim: async (hf) => (await hf.claim(block, { worker: "me", renew: "auto" })) !== null,
  "claim by hand": async (hf) => (await hf.claim(block, { worker: "me" })) !== null,
  build: async (hf) => (await (await hf.builds.start(isolated)).done()).state,
  "build in memory": async () => {
    const hf = await open(":memory:", { log, artifacts: "artifacts" });
    const state = await actions.build(hf);
    await hf.close();
    return { state, errors };
  },
  backup: (hf) => hf.backup("copy.db"),
  check: (hf) => hf.check(),
};

async function main() {
  const hf = await open(database, { program: "app", log });
  const said = {};
  for (const what of wishes) {
    try {
      said[what] = { answer: await actions[what](hf) };
    } catch ({ code, message, hint }) {
      said[what] = { code, message, hint };
    }
  }
  await hf.close();
  console.log(JSON.stringify(said));
}

// The process of an isolated stage imports this module, too.
if (database !== undefined) void main();
