import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { contents, noise, Shelf } from "./shelf.ts";

const ODD = [
  "plain.txt",
  "-",
  "-n",
  " spaced ",
  "new\nline",
  "back\\slash",
  "end\\",
  "return\r",
  "tab\t*?'\"$(x)",
  "größe/𝄞/é",
  "a/b/c/d",
  "%00",
  "...",
];

test("files keep their names and bytes, and sha256sum -c accepts the checksums", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const entries = [];
  for (const [i, path] of ODD.entries()) entries.push({ path, hash: (await artifacts.put(noise(i * 70_000, i))).hash });
  const target = join(shelf.base, "out", "first");
  const bytes = entries.map((_, i) => i * 70_000).reduce((sum, size) => sum + size, 0);
  assert.deepEqual(await artifacts.exportTo(target, entries, { build: 7 }), { path: target, files: ODD.length, bytes });

  const { "manifest.json": manifest, "checksums.txt": checksums, ...files } = contents(target);
  assert.deepEqual(files, Object.fromEntries(ODD.map((path, i) => [path, noise(i * 70_000, i).toString("latin1")])));
  assert.deepEqual(JSON.parse(manifest as string), { build: 7 });
  assert.equal((checksums as string).trimEnd().split("\n").length, ODD.length + 1);
  assert.deepEqual(readdirSync(join(shelf.base, "out")), ["first"], "nothing is written beside it");
  assert.deepEqual(shelf.unfinished(), []);

  const checked = check(target);
  assert.equal(checked.status, 0, checked.stderr + checked.stdout);
  writeFileSync(join(target, "new\nline"), "other bytes");
  assert.notEqual(check(target).status, 0, "and it would see a difference");
});

test("an export of nothing is a manifest and its checksum", async (t) => {
  const shelf = new Shelf(t);
  await (await shelf.open()).exportTo(join(shelf.base, "out"), [], {});
  assert.deepEqual(readdirSync(join(shelf.base, "out")).sort(), ["checksums.txt", "manifest.json"]);
  assert.equal(check(join(shelf.base, "out")).status, 0);
});

const OUTSIDE = [
  "",
  "/etc/passwd",
  "//host/share",
  "..",
  "../x",
  "a/../../x",
  "a/..",
  "a//b",
  "a/",
  "./a",
  "a/./b",
  ".",
  "\0",
  "a\0/../b",
  "C:/x",
  "c:x",
  "a/d:x",
  "\\x",
  "\\\\host\\share",
  "..\\x",
  "a\\..\\..\\x",
  "half \ud800",
  "x".repeat(256),
  "y/".repeat(2_500).concat("z"),
  null,
  7,
  ["a"],
];
for (const path of OUTSIDE) {
  test(`the path ${(JSON.stringify(path) as string).slice(0, 30)} is rejected, and nothing is exported`, async (t) => {
    await refuses(t, [path], "EXPORT_PATH_INVALID");
  });
}

const CLASHES: [string, string][] = [
  ["a", "a"],
  ["readme", "README"],
  ["\u00e9", "e\u0301"],
  ["STRASSE", "straße"],
  ["Docs/a", "docs/A"],
  ["Docs/a", "docs"],
  ["a", "a/b"],
  ["a/b", "a"],
];
for (const [one, two] of CLASHES) {
  test(`the paths ${JSON.stringify(one)} and ${JSON.stringify(two)} together are rejected, and nothing is exported`, async (t) => {
    await refuses(t, [one, two], "EXPORT_PATH_TAKEN");
  });
}
test("folders whose names differ only by case or accents are accepted, because their files stay distinct", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const { hash } = await artifacts.put("a");
  const paths = ["Docs/a", "docs/b", "a/\u00e9/x", "a/e\u0301/y"];
  const target = join(shelf.base, "out");
  await artifacts.exportTo(
    target,
    paths.map((path) => ({ path, hash })),
    {},
  );
  for (const path of paths) assert.equal(readFileSync(join(target, path), "utf8"), "a");
  assert.equal(check(target).status, 0);
});

test("a text is written unchanged with its checksum, and is not stored", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const target = join(shelf.base, "out");
  const done = await artifacts.exportTo(target, [{ path: "deep/é.json", text: '"é"' }], {});
  assert.deepEqual([done.files, done.bytes], [1, 4]);
  assert.equal(readFileSync(join(target, "deep/é.json"), "utf8"), '"é"');
  assert.equal(check(target).status, 0);
  assert.deepEqual(await artifacts.sweep(async () => new Set(), { olderThan: 0 }), { seen: 0, removed: 0, bytes: 0 });
});

for (const own of ["manifest.json", "Checksums.txt", "manifest.json/a"]) {
  test(`a user's file called ${own} is rejected, and nothing is exported`, async (t) => {
    await refuses(t, [own], "EXPORT_PATH_TAKEN");
  });
}

test("an existing folder, file or link is left unchanged", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const elsewhere = join(shelf.base, "elsewhere");
  mkdirSync(elsewhere);
  const out = join(shelf.base, "out");
  mkdirSync(join(out, "folder"), { recursive: true });
  writeFileSync(join(out, "file"), "mine");
  symlinkSync(elsewhere, join(out, "link"));
  symlinkSync(join(shelf.base, "nowhere"), join(out, "dangling"));
  const { hash } = await artifacts.put("a");
  for (const name of ["folder", "file", "link", "dangling"]) {
    await assert.rejects(artifacts.exportTo(join(out, name), [{ path: "a", hash }], {}), { code: "EXPORT_EXISTS" });
  }
  assert.deepEqual(readdirSync(elsewhere), []);
  assert.deepEqual(readdirSync(out).sort(), ["dangling", "file", "folder", "link"]);
  assert.ok(!existsSync(join(shelf.base, "nowhere")));
});

test("a folder that appears during an export stays, and no second one is made", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const target = join(shelf.base, "out", "one");
  const { hash } = await artifacts.put("a");
  const entries = (function* () {
    mkdirSync(target);
    writeFileSync(join(target, "mine"), "mine");
    yield { path: "a", hash };
  })();
  await assert.rejects(artifacts.exportTo(target, entries, {}), { code: "EXPORT_EXISTS" });
  assert.deepEqual(contents(join(shelf.base, "out")), { "one/mine": "mine" });
});

test("an error of the list, or a manifest that is not JSON, leaves nothing", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const { hash } = await artifacts.put("a");
  const entries = async function* () {
    yield { path: "a", hash };
    throw new Error("the list broke off");
  };
  await assert.rejects(artifacts.exportTo(join(shelf.base, "out"), entries(), {}), /the list broke off/);
  await assert.rejects(artifacts.exportTo(join(shelf.base, "out"), [], { at: new Date() }), { code: "NOT_JSON" });
  await assert.rejects(artifacts.exportTo(join(shelf.base, "out"), [{ path: "a", hash: "../x" }], {}), {
    code: "ARTIFACT_HASH_INVALID",
  });
  assert.deepEqual(readdirSync(shelf.base), ["store"]);
  assert.deepEqual(shelf.unfinished(), []);
});

async function refuses(t: ConstructorParameters<typeof Shelf>[0], paths: unknown[], code: string): Promise<void> {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const { hash } = await artifacts.put("a");
  const entries = paths.map((path) => ({ path: path as string, hash }));
  await assert.rejects(artifacts.exportTo(join(shelf.base, "out", "one"), entries, {}), { code, hint: /\w/ });
  assert.deepEqual(readdirSync(shelf.base).sort(), ["out", "store"]);
  assert.deepEqual(readdirSync(join(shelf.base, "out")), []);
  assert.deepEqual(shelf.unfinished(), []);
}

function check(folder: string) {
  return spawnSync("sha256sum", ["--strict", "-c", "checksums.txt"], { cwd: folder, encoding: "utf8", input: "" });
}
