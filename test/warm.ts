import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { main } from "../src/cli/main.ts";
import { files, job, open, pipeline } from "../src/index.ts";

/*
 * Run once, before all others, by `setup.ts`: what it does, most processes of the tests do, and the functions that it has
 * called are compiled for them.
 */
const folder = process.argv[2] ?? mkdtempSync(join(tmpdir(), "holdfast-warm-"));
const path = join(folder, "work.db");
const hf = await open(path);
const echo = job<{ word: string }>({ name: "echo", run: ({ input }) => input.word });
writeFileSync(join(folder, "a.txt"), "a word");
const words = pipeline("words")
  .source(files("*.txt", { root: folder }))
  .stage("read", {}, async ({ target }) => String(await target.bytes()));
const worker = hf.work([echo]);
const { id } = await hf.enqueue(echo, { word: "good morning" });
await hf.jobs.wait(id);
await (await hf.builds.start(words)).done();
await worker.stop();
await hf.close();
// It ends the process.
await main(["status", "--db", path]);
