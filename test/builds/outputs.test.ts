import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { files, items, pipeline } from "../../src/index.ts";
import { ONCE, outputsOf, refusal, test, type Yard, yard } from "./parts.ts";

test("bytes stay bytes, large values stay whole, and both reach the next stage", async (t) => {
  const here = await yard(t);
  const large = { text: "é".repeat(200_000) };
  const seen: unknown[] = [];
  const built = await here.succeed(
    pipeline("values")
      .source(items(() => ["a"], { id: (id) => id }))
      .stage("bytes", {}, () => new Uint8Array([0, 255, 128]))
      .stage("large", {}, ({ input }) => (seen.push(input), large))
      .stage("last", { uses: ["bytes"] }, ({ input, outputs }) => (seen.push(input.text.length, outputs.bytes), null)),
  );
  assert.deepEqual(seen.map(plain), [new Uint8Array([0, 255, 128]), 200_000, new Uint8Array([0, 255, 128])].map(plain));
  assert.deepEqual(plain(await built.handle.output("bytes")), plain(new Uint8Array([0, 255, 128])));
  assert.deepEqual(await built.handle.output("large"), large);
  assert.equal(await built.handle.output("last"), null);
});

test("artifacts are stored by name, from bytes, texts, streams and files, and a repeated name is rejected", async (t) => {
  const here = await yard(t);
  here.write({ a: "the file" });
  const built = await here.build(
    pipeline("pages")
      .source(files("*", { root: here.root }))
      .stage("page", {}, async ({ artifact, target }) => {
        const kept = [
          await artifact("bytes.bin", new Uint8Array([1, 2, 3])),
          await artifact("text.html", "<p>é</p>"),
          await artifact("deep/stream.txt", Readable.from(["one ", "two"])),
          await artifact("file.txt", { path: target.path }),
        ];
        return kept.map(({ name, size }) => [name, size]);
      })
      .stage("twice", ONCE, async ({ artifact }) => {
        await artifact("x", "1");
        await artifact("x", "2");
      }),
  );
  assert.deepEqual(await built.handle.output("page"), [
    ["bytes.bin", 3],
    ["text.html", 9],
    ["deep/stream.txt", 7],
    ["file.txt", 8],
  ]);
  assert.match(built.errors[0]?.message ?? "", /two artifacts named "x"/);
});

test("an artifact name that could leave an export folder is rejected before anything is stored", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("outside")
      .source(items(() => ["a"], { id: (id) => id }))
      .stage("page", ONCE, ({ artifact }) => artifact("../../x y", "1")),
  );
  assert.deepEqual(
    built.errors.map(({ message }) => message),
    ['The artifact\'s name "../../x y" leads out of its folder, so it cannot be the path of an exported file.'],
  );
});

/** Two files, a bytes output, artifacts and a gather. */
function pages({ root }: Yard) {
  return pipeline("pages")
    .source(files("**/*", { root }))
    .stage("size", {}, ({ target }) => target.size)
    .stage("page", {}, async ({ artifact, target, cost }) => {
      cost({ usd: 0.5, tokens: 2 });
      await artifact("page.html", `<p>${target.id}</p>`);
      return await target.bytes();
    })
    .gather("all", {}, async ({ inputs }) => {
      const ids: string[] = [];
      for await (const { target } of inputs) ids.push(target.id);
      return ids;
    });
}

test("an export has every output and artifact by name, a manifest, and checksums that sha256sum accepts", async (t) => {
  const here = await yard(t);
  here.write({ "a.md": "A", "sub/b.md": "BB" });
  const { id } = await here.succeed(pages(here));
  const path = await here.hf.builds.export(id, join(here.folder, "out", "first"));
  assert.deepEqual(JSON.parse(readFileSync(join(path, "all/all.json"), "utf8")), ["a.md", "sub/b.md"]);
  assert.equal(readFileSync(join(path, "page/sub/b.md.bin"), "utf8"), "BB");
  assert.equal(readFileSync(join(path, "page/a.md/page.html"), "utf8"), "<p>a.md</p>");
  assert.equal(readFileSync(join(path, "size/sub/b.md.json"), "utf8"), "2");
  const checked = execFileSync("sha256sum", ["-c", "checksums.txt"], { cwd: path, encoding: "utf8" });
  assert.equal(
    checked
      .trim()
      .split("\n")
      .every((line) => line.endsWith(": OK")),
    true,
  );
  const manifest = JSON.parse(readFileSync(join(path, "manifest.json"), "utf8")) as {
    build: { id: string; state: string; spent: object };
    stages: string[];
    targets: { stage: string; target: string; cost: { usd: number } }[];
  };
  assert.deepEqual([manifest.build.id, manifest.build.state, manifest.build.spent], [id, "SUCCESS", { usd: 1, tokens: 4 }]);
  assert.deepEqual(manifest.stages, ["size", "page", "all"]);
  assert.deepEqual(
    manifest.targets.map(({ stage, target, cost }) => [stage, target, cost.usd]),
    [
      ["size", "a.md", 0],
      ["size", "sub/b.md", 0],
      ["page", "a.md", 0.5],
      ["page", "sub/b.md", 0.5],
      ["all", "all", 0],
    ],
  );
  assert.deepEqual(readdirSync(join(here.folder, "out")), ["first"], "nothing is written outside of the folder");
});

test("an export of some stages has only those, the next build's is separate, and removed targets are left out", async (t) => {
  const here = await yard(t);
  here.write({ "a.md": "A", "b.md": "B" });
  const first = await here.succeed(pages(here));
  const place = (name: string) => join(here.folder, "out", name);
  const one = await here.hf.builds.export(first.id, place("one"), { stages: ["all"] });
  assert.deepEqual(readdirSync(one).toSorted(), ["all", "checksums.txt", "manifest.json"]);
  await assert.rejects(here.hf.builds.export(first.id, place("no"), { stages: ["nope"] }), refusal("STAGE_UNKNOWN"));
  here.remove("a.md");
  const second = await here.succeed(pages(here));
  const two = await here.hf.builds.export(second.id, place("two"));
  assert.deepEqual(readdirSync(join(two, "size")), ["b.md.json"]);
  assert.deepEqual(readdirSync(join(two, "page")).toSorted(), ["b.md", "b.md.bin"]);
  const old = await here.hf.builds.export(first.id, place("old"));
  assert.deepEqual(readdirSync(join(old, "size")).toSorted(), ["a.md.json", "b.md.json"], "the first is as it was");
  await assert.rejects(here.hf.builds.export(first.id, place("two")), refusal("EXPORT_EXISTS"));
});

/** An export as it is in its manifest, after `sha256sum` has accepted it. */
function manifestOf(path: string): { stage: string; ids: string[]; files: { path: string; name: string; hash: string }[] }[] {
  execFileSync("sha256sum", ["--strict", "--quiet", "-c", "checksums.txt"], { cwd: path });
  return (JSON.parse(readFileSync(join(path, "manifest.json"), "utf8")) as { targets: ReturnType<typeof manifestOf> }).targets;
}

/** The paths of all files in a folder. */
function filesIn(path: string): string[] {
  const inside = readdirSync(path, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return inside.map((entry) => join(entry.parentPath, entry.name).slice(path.length + 1)).toSorted();
}

const LONG = "x".repeat(300);
const ODD: Record<string, string | RegExp> = {
  "plain/Ä b.md": "same/plain/Ä b.md",
  "100%": "same/100%",
  "https://a.example/b?c=d": "same/https%3A%2F%2Fa.example/b%3Fc=d",
  "../../up": "same/%2E%2E/%2E%2E/up",
  "/root": "same/%2Froot",
  "a/../../b": "same/a/%2E%2E/%2E%2E/b",
  "a//b/": "same/a%2F%2Fb%2F",
  "//": "same/%2F%2F",
  ".": "same/%2E",
  con: "same/%63on",
  "C:x": "same/C%3Ax",
  "x\\..\\y": "same/x%5C..%5Cy",
  "line\nbreak": "same/line%0Abreak",
  "\u0085\u007f": "same/%C2%85%7F",
  "dot.": "same/dot%2E",
  [LONG]: /^same\/x{160}~[0-9a-f]{16}$/,
  [`é${LONG}/deep`]: /^same\/deep~[0-9a-f]{32}$/,
  [`${"y/".repeat(900)}z`]: /^same\/z~[0-9a-f]{32}$/,
};

test("ids that are not plain paths are exported under safe names, and the manifest has every id", async (t) => {
  const here = await yard(t);
  const { id } = await here.succeed(
    pipeline("odd")
      .source(items(() => Object.keys(ODD), { id: (one) => one }))
      .stage("same", {}, async ({ input, artifact }) => {
        await artifact("deep/kept.txt", `kept ${input}`);
        return input;
      }),
  );
  const place = join(here.folder, "deep", "out");
  const path = await here.hf.builds.export(id, place);
  const targets = manifestOf(path);
  assert.equal(targets.length, Object.keys(ODD).length);
  for (const { ids, files } of targets) {
    const [own, kept] = files.map((file) => file.path);
    const wanted = ODD[ids[0] as string] as string | RegExp;
    if (typeof wanted === "string") assert.equal(own, `${wanted}.json`);
    else assert.match((own as string).slice(0, -5), wanted);
    assert.equal(kept, `${own?.slice(0, -5)}/deep/kept.txt`);
    assert.equal(JSON.parse(readFileSync(join(path, own as string), "utf8")), ids[0]);
    assert.equal(readFileSync(join(path, kept as string), "utf8"), `kept ${ids[0]}`);
  }
  const named = targets.flatMap(({ files }) => files.map((file) => file.path));
  assert.deepEqual(filesIn(path), [...named, "checksums.txt", "manifest.json"].toSorted());
  assert.deepEqual(readdirSync(join(here.folder, "deep")).toSorted(), ["out"]);
  const again = await here.hf.builds.export(id, join(here.folder, "deep", "again"));
  assert.deepEqual(manifestOf(again), targets, "the same build has the same names");
});

/** The first of each keeps its name. */
const CLASHING = [
  ["README", "readme", "ReadMe"],
  ["e\u0301", "\u00e9"],
  ["Docs/a", "docs/a", "docs/b"],
  ["a", "a/b", "a.json", "a.json/x", "a/kept.txt"],
  ["x%3Ay", "x:y", "x%3Ay~0123456789abcdef"],
  ["%01", "\u0001"],
];
for (const ids of CLASHING) {
  test(`ids that would be one file get different names: ${JSON.stringify(ids)}`, async (t) => {
    const here = await yard(t);
    const { id } = await here.succeed(
      pipeline("clash")
        .source(items(() => ids, { id: (one) => one }))
        .stage("same", {}, async ({ input, artifact }) => {
          await artifact("kept.txt", input);
          await artifact("Kept.txt", input.toUpperCase());
          await artifact("b.json", "b");
          return input;
        }),
    );
    const path = await here.hf.builds.export(id, join(here.folder, "out"));
    const targets = manifestOf(path);
    const paths = targets.flatMap(({ files }) => files.map((file) => file.path));
    assert.equal(new Set(paths.map((one) => one.normalize("NFC").toLowerCase())).size, 4 * ids.length);
    for (const { ids: own, files } of targets) {
      assert.equal(JSON.parse(readFileSync(join(path, files[0]?.path as string), "utf8")), own[0]);
      const kept = files.find(({ name }) => name === "kept.txt")?.path as string;
      assert.equal(readFileSync(join(path, kept), "utf8"), own[0]);
    }
    const keeper = targets.find(({ ids: own }) => own[0] === ids[0]);
    assert.equal(keeper?.files[0]?.path, `same/${ids[0]}.json`);
  });
}

test("children of different parents, and stages named like files of the export, get different names", async (t) => {
  const here = await yard(t);
  const children: Record<string, string[]> = { a: ["b/c"], "a/b": ["c"] };
  const { id } = await here.succeed(
    pipeline("children")
      .source(items(() => Object.keys(children), { id: (one) => one }))
      .expand("split", {}, ({ target }) => (children[target.id] as string[]).map((child) => ({ id: child, value: target.id })))
      .stage("manifest.json", {}, ({ input }) => input)
      .stage("Same:?", {}, ({ input }) => input)
      .stage("same%3A%3F", {}, ({ input }) => input),
  );
  const path = await here.hf.builds.export(id, join(here.folder, "out"));
  const targets = manifestOf(path);
  for (const { ids, files } of targets)
    for (const file of files) assert.equal(JSON.parse(readFileSync(join(path, file.path), "utf8")), ids[0]);
  assert.deepEqual(
    targets.filter(({ stage }) => stage === "same%3A%3F").map(({ ids, files }) => [ids, files[0]?.path.split("~")[0]]),
    [
      [["a", "b/c"], "same%3A%3F/a/b/c.json"],
      [["a/b", "c"], "same%3A%3F/a/b/c"],
    ],
  );
  const folders = readdirSync(path).map((name) => name.replace(/~.*/, "~"));
  assert.deepEqual(folders.toSorted(), ["Same%3A%3F~", "checksums.txt", "manifest.json", "manifest.json~", "same%3A%3F"]);
});

test("an export adds nothing to the artifacts", async (t) => {
  const here = await yard(t);
  const { id } = await here.succeed(
    pipeline("small")
      .source(items(() => ["a", "b"], { id: (one) => one }))
      .stage("same", {}, ({ input }) => ({ input })),
  );
  const path = await here.hf.builds.export(id, join(here.folder, "out"));
  assert.deepEqual(filesIn(path), ["checksums.txt", "manifest.json", "same/a.json", "same/b.json"]);
  const artifacts = await here.hf.engine.artifacts();
  assert.deepEqual(await artifacts.sweep(async () => new Set(), { olderThan: 0 }), { seen: 0, removed: 0, bytes: 0 });
});

test("a missing output is reported, and one of several must be named", async (t) => {
  const here = await yard(t);
  here.write({ "a.md": "A", "b.md": "B" });
  const { id, handle } = await here.succeed(pages(here));
  const { builds } = here.hf;
  await assert.rejects(builds.output(id, "nope"), refusal("STAGE_UNKNOWN", /nope/));
  await assert.rejects(builds.output(id, "size", "c.md"), refusal("NO_SUCH_OUTPUT", /c\.md/));
  await assert.rejects(builds.output(id, "size"), refusal("TARGET_NEEDED"));
  await assert.rejects(builds.output("b00000000000000000", "size"), refusal("NO_SUCH_BUILD"));
  assert.equal(await builds.output(id, "size", "a.md"), 1);
  assert.deepEqual(await handle.output("all"), ["a.md", "b.md"]);
});

test("an earlier build's outputs do not change", async (t) => {
  const here = await yard(t);
  here.write({ "a.md": "A" });
  const first = await here.succeed(pages(here));
  here.write({ "a.md": "AAA", "b.md": "B" });
  const second = await here.succeed(pages(here));
  assert.deepEqual(await outputsOf(first, "size"), { "a.md": 1 });
  assert.deepEqual(await outputsOf(second, "size"), { "a.md": 3, "b.md": 1 });
  assert.deepEqual(await here.hf.builds.output(first.id, "all"), ["a.md"]);
});

function plain(value: unknown): unknown {
  return value instanceof Uint8Array ? [...value] : value;
}
