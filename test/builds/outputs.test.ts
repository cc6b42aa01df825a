import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { files, items, pipeline } from "../../src/index.ts";
import { ONCE, outputsOf, refusal, test, type Yard, yard } from "./parts.ts";

test("bytes come back as bytes, large values whole, and both go on to the next stage", async (t) => {
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

test("artifacts are kept under their names, from bytes, texts, streams and files, and a name twice is refused", async (t) => {
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

test("an export has every output and artifact under its name, a manifest, and sums that sha256sum accepts", async (t) => {
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
  assert.equal(readlinkSync(join(here.folder, "out", "latest")), "first");
});

test("an export of some stages has those, the next build's is beside it, and what is gone is in it no more", async (t) => {
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

test("ids that look like paths out of the folder stay in it", async (t) => {
  const here = await yard(t);
  const { id } = await here.succeed(
    pipeline("odd")
      .source(items(() => ["../../up", "/root", "a/../../b", "con", "x\\y", "."], { id: (one) => one }))
      .stage("same", {}, async ({ input, artifact }) => {
        await artifact("kept.txt", input);
        return input;
      }),
  );
  const place = join(here.folder, "deep", "out");
  let path: string;
  try {
    path = await here.hf.builds.export(id, place);
  } catch (error) {
    // To say no is right, too.
    assert.ok(refusal("EXPORT_PATH_INVALID")(error));
    assert.ok(!existsSync(join(here.folder, "up")));
    return;
  }
  const inside = readdirSync(path, { recursive: true }) as string[];
  assert.ok(inside.length >= 12);
  assert.deepEqual(
    readdirSync(here.folder).filter((name) => /up|b\.json/.test(name)),
    [],
  );
});

test("an output that is not there is said, and one of several has to be named", async (t) => {
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

test("an earlier build's outputs are what they were", async (t) => {
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
