import assert from "node:assert/strict";
import { cp, mkdir, mkdtemp, rename, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { type Build, files, items, open, pipeline } from "../../src/index.ts";
import type { Clock } from "../../src/core/text/duration.ts";
import { sourceOf } from "../../src/core/pipelines/source.ts";
import { quietLog } from "../../src/engine/log.ts";
import { SourceChanges } from "../../src/pipelines/sources/changes.ts";
import { systemClock } from "../../src/engine/host.ts";
import { testClock } from "../../src/testing/index.ts";

let root: string;
before(async () => (root = await mkdtemp(join(tmpdir(), "holdfast-watch-"))));
after(() => rm(root, { recursive: true, force: true }));

const never = new AbortController().signal;

/** Real time, and a signal when a watcher has scanned and waits for a long time. */
class Rests implements Clock {
  now = systemClock.now;
  monotonic = systemClock.monotonic;
  #told: (() => void) | null = null;
  #count = 0;
  last = 0;

  after(millis: number, call: () => void): () => void {
    if (millis >= 2_500) {
      this.last = millis;
      this.#count++;
      this.#told?.();
    }
    return systemClock.after(millis, call);
  }

  /** Resolves with the next one. */
  async next(): Promise<void> {
    const before = this.#count;
    while (this.#count === before) await new Promise<void>((resolve) => (this.#told = resolve));
  }
}

interface Watching {
  folder: string;
  clock: Rests;
  changes: SourceChanges;
}

/** A folder of its own, and what tells of its changes. */
async function watching(name: string, skip: string[] = []): Promise<Watching> {
  const folder = join(root, name);
  await mkdir(join(folder, "docs/deep"), { recursive: true });
  await writeFile(join(folder, "docs/a.md"), "a");
  await writeFile(join(folder, ".gitignore"), "ignored.md\n");
  const source = sourceOf(files("docs/**/*.md", { root: folder }));
  const folders = { cwd: folder, skip: skip.map((one) => join(folder, one)) };
  const clock = new Rests();
  return { folder, clock, changes: new SourceChanges({ source, folders, clock, log: quietLog }) };
}

test("a changed, new, moved or deleted file wakes the waiting caller, also in new folders", async () => {
  const { folder, clock, changes } = await watching("files");
  using _ = changes;
  const acts = [
    () => writeFile(join(folder, "docs/a.md"), "other"),
    () => writeFile(join(folder, "docs/deep/b.md"), "b"),
    () => mkdir(join(folder, "docs/new/er"), { recursive: true }).then(() => writeFile(join(folder, "docs/new/er/c.md"), "c")),
    () => writeFile(join(folder, "docs/new/er/c.md"), "more"),
    () => rename(join(folder, "docs/new"), join(folder, "docs/newer")),
    () => rm(join(folder, "docs/deep/b.md")),
  ];
  for (const act of acts) {
    await changes.mark();
    const resting = clock.next();
    const woken = changes.next(never);
    await resting;
    await act();
    assert.equal(await woken, true);
  }
});

test("a change that happens while no caller waits is not lost", async () => {
  const { folder, changes } = await watching("meanwhile");
  using _ = changes;
  await changes.mark();
  await writeFile(join(folder, "docs/a.md"), "meanwhile");
  assert.equal(await changes.next(never), true);
});

test("ignored files, other files and the database wake no caller, and the end of a wait is not a change", async () => {
  const { folder, clock, changes } = await watching("others", ["docs/work.db"]);
  using _ = changes;
  await changes.mark();
  const over = new AbortController();
  let resting = clock.next();
  const woken = changes.next(over.signal);
  await resting;
  resting = clock.next();
  await writeFile(join(folder, "docs/work.db"), "x");
  await writeFile(join(folder, "docs/ignored.md"), "x");
  await writeFile(join(folder, "docs/notes.txt"), "x");
  // It has looked, and found nothing.
  await resting;
  over.abort();
  assert.equal(await woken, false);
});

test("removing the root is a change, and so is its return", async () => {
  const { folder, clock, changes } = await watching("root");
  using _ = changes;
  await changes.mark();
  let resting = clock.next();
  const woken = changes.next(never);
  await resting;
  await rename(folder, `${folder}-away`);
  assert.equal(await woken, true);
  await changes.mark();
  resting = clock.next();
  const over = new AbortController();
  const back = changes.next(over.signal);
  await resting;
  assert.equal(clock.last, 3_000, "the file system cannot notify, so it is scanned more often");
  over.abort();
  assert.equal(await back, false);
  await rename(`${folder}-away`, folder);
  assert.equal(await changes.next(never), true);
});

test("a caller that stops waiting during a scan does not wait any longer", async () => {
  const { changes } = await watching("stopped");
  using _ = changes;
  await changes.mark();
  const over = new AbortController();
  const woken = changes.next(over.signal);
  over.abort();
  assert.equal(await woken, false);
});

test("items are listed again every few seconds", async () => {
  const clock = testClock();
  const list = [{ id: "a", text: "a" }];
  const source = sourceOf(items(() => list, { id: ({ id }) => id }));
  using changes = new SourceChanges({ source, folders: { cwd: root, skip: [] }, clock, log: quietLog });
  await changes.mark();
  let woken = false;
  const next = changes.next(never).then((is) => (woken = is));
  await clock.advance("30s");
  assert.equal(woken, false);
  list.push({ id: "b", text: "b" });
  await clock.advance("4s");
  assert.equal(await next, true);
});

test("builds.watch builds at once and after each change, until its signal aborts", async () => {
  const folder = join(root, "builds");
  await mkdir(folder);
  for (const name of ["a", "b"]) await writeFile(join(folder, `${name}.md`), name);
  const ran: string[] = [];
  const docs = pipeline("docs")
    .source(files("*.md", { root: folder }))
    .stage("read", {}, ({ target }) => void ran.push(target.id));
  await using hf = await open(":memory:");
  const over = new AbortController();
  const seen: Build[] = [];
  for await (const build of hf.builds.watch(docs, { signal: over.signal, rerun: ["read"] })) {
    seen.push(build);
    if (seen.length === 1) await writeFile(join(folder, "b.md"), "other");
    // A touch is a reason to look, and nothing is done again for it.
    if (seen.length === 2) await utimes(join(folder, "a.md"), 1, 1);
    if (seen.length === 3) over.abort();
  }
  assert.deepEqual(
    seen.map(({ state, stages }) => [state, stages["read"]?.ran, stages["read"]?.cached]),
    [
      ["SUCCESS", 2, 0],
      ["SUCCESS", 1, 1],
      ["SUCCESS", 0, 2],
    ],
  );
  assert.deepEqual(ran.toSorted(), ["a.md", "b.md", "b.md"]);
});

test("renaming a watched folder away removes no targets, even if another folder takes its place", async () => {
  const folder = join(root, "away");
  await mkdir(join(folder, "notes"), { recursive: true });
  for (const name of ["a", "b"]) await writeFile(join(folder, `notes/${name}.md`), name);
  const removed: string[] = [];
  const docs = pipeline("notes")
    .source(files("notes/*.md", { root: folder }))
    .stage("publish", { remove: ({ target }) => void removed.push(target.id) }, ({ target }) => target.id);
  await using hf = await open(":memory:", { log: quietLog });
  const over = new AbortController();
  const seen: string[] = [];
  const acts = [
    () => rename(join(folder, "notes"), join(folder, "notes.away")),
    async () => {
      await cp(join(folder, "notes.away"), join(folder, "notes.new"), { recursive: true });
      await rename(join(folder, "notes.new"), join(folder, "notes"));
    },
    () => rm(join(folder, "notes/b.md")),
    async () => over.abort(),
  ];
  for await (const { state } of hf.builds.watch(docs, { signal: over.signal })) {
    seen.push(`${state} ${removed.join()}`);
    await acts[seen.length - 1]?.();
  }
  assert.deepEqual(seen, ["SUCCESS ", "FAILED ", "SUCCESS ", "SUCCESS notes/b.md"]);
});

test("a signal that aborts while a build is starting stops the build", async () => {
  const docs = pipeline("stopped")
    .source(items(() => [1, 2], { id: String }))
    .stage("wait", {}, ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))));
  await using hf = await open(":memory:");
  const over = new AbortController();
  const starting = hf.builds.start(docs, { signal: over.signal });
  over.abort();
  const { state, reason } = await (await starting).done();
  assert.deepEqual([state, reason], ["CRASHED", "stopped"]);
});
