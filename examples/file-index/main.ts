/**
 * An index that is kept up to date: notes are read, each becomes a page, and a table says which word is on which page. A
 * second build reads only what has changed, takes away the pages of what is gone, and finds a renamed note by its bytes.
 *
 *   node examples/file-index/main.ts [folder]
 */
import { mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { files, open, pipeline } from "../../src/index.ts";
import { exampleFolder } from "../folder.ts";

using folder = exampleFolder("file-index");
const [notes, pages] = [join(folder.path, "notes"), join(folder.path, "pages")];
for (const path of [notes, pages]) mkdirSync(path, { recursive: true });

const index = pipeline("notes")
  .source(files("**/*.txt", { root: notes }))
  // What a text says does not depend on what its file is called: a renamed one is not read again.
  .stage("read", { reuse: "bytes" }, async ({ target }) => {
    const text = new TextDecoder().decode(await target.bytes());
    return { text, words: [...new Set(text.toLowerCase().match(/\p{L}+/gu))].sort() };
  })
  // A page bears the name of its note, so a renamed note has another page, and the old one is removed.
  .stage("page", { remove: ({ target }) => rmSync(pageOf(target.id), { force: true }) }, ({ target, input }) => {
    writeFileSync(pageOf(target.id), `<h1>${target.id}</h1><p>${input.text}</p>\n`);
    return { words: input.words };
  })
  .gather("words", {}, async ({ inputs }) => {
    const found = new Map<string, string[]>();
    for await (const { target, output } of inputs)
      for (const word of output.words) found.set(word, [...(found.get(word) ?? []), target.id]);
    return Object.fromEntries([...found].sort());
  });

await using hf = await open(join(folder.path, "index.db"));

note("bowline.txt", "A bowline is a fixed loop that does not slip.");
note("clove-hitch.txt", "A clove hitch holds a rope to a pole, and may slip.");
note("reef-knot.txt", "A reef knot ties two ends of one rope.");
note("sheet-bend.txt", "A sheet bend ties a thick rope to a thin one.");
await build("four notes");
await build("nothing has changed");

note("clove-hitch.txt", "A clove hitch holds a rope to a pole; two half hitches make it sure.");
rmSync(join(notes, "reef-knot.txt"));
renameSync(join(notes, "bowline.txt"), join(notes, "king-of-knots.txt"));
note("figure-eight.txt", "A figure eight stops a rope from running out.");
console.log(`planned: ${JSON.stringify((await hf.builds.plan(index)).stages["read"])}`);
await build("one changed, one gone, one renamed, one new");

async function build(what: string): Promise<void> {
  const started = await hf.builds.start(index);
  const { state, stages, errors } = await started.done();
  if (state !== "SUCCESS") throw new Error(`${what}: ${state} ${JSON.stringify(errors)}`);
  const counts = Object.entries(stages).map(([name, { ran, cached }]) => `${name} ran ${ran}, reused ${cached}`);
  console.log(`${what}: ${counts.join("; ")}`);
  console.log(`  pages: ${readdirSync(pages).sort().join(", ")}`);
  console.log(`  "rope" is in ${(await started.output("words"))["rope"]?.join(", ")}`);
}

function note(name: string, text: string): void {
  writeFileSync(join(notes, name), text);
}

function pageOf(id: string): string {
  return join(pages, `${id}.html`);
}
