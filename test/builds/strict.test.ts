import assert from "node:assert/strict";
import { rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";
import { describe, test } from "node:test";
import { files, items, pipeline } from "../../src/index.ts";
import { yard } from "./parts.ts";

const ONE = items(() => [{ i: 1 }], { id: ({ i }) => String(i) });
const TWO = items(() => [{ i: 1 }, { i: 2 }], { id: ({ i }) => String(i) });

describe("time and money", () => {
  test("an attempt past its timeout is charged its estimate, because it may have begun to pay", async (t) => {
    const { build } = await yard(t);
    const slow = pipeline("slow")
      .source(ONE)
      .stage(
        "pay",
        { estimate: () => ({ usd: 1 }), timeout: 50, retry: { attempts: 1 } },
        ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason as Error))),
      );
    const { state, spent } = await build(slow);
    assert.deepEqual([state, spent.usd], ["FAILED", 1]);
  });

  test("waiting for budget does not count as an attempt's time", async (t) => {
    const { build } = await yard(t);
    const tight = pipeline("tight", { budget: { usd: 1 } })
      .source(TWO)
      .stage("pay", { estimate: () => ({ usd: 0.6 }), timeout: 900, retry: { attempts: 1 } }, async ({ cost }) => {
        await after(600);
        cost({ usd: 0.1 });
      });
    const { state, spent, errors } = await build(tight, { concurrency: 2 });
    assert.deepEqual([state, spent.usd, errors], ["SUCCESS", 0.2, []]);
  });
});

describe("what has to be answered at once", () => {
  test("a match that returns a promise fails its target", async (t) => {
    const { build } = await yard(t);
    const late = pipeline("late")
      .source(ONE)
      .stage("some", { match: (async () => false) as never }, () => 1);
    const { state, errors } = await build(late);
    assert.equal(state, "FAILED");
    assert.match(errors[0]?.message ?? "", /returned a promise/);
  });
});

describe("the name of an artifact", () => {
  test("an artifact name that leaves an export folder is rejected where it is given", async (t) => {
    const { build } = await yard(t);
    const escaping = pipeline("escaping")
      .source(ONE)
      .stage("keep", { retry: { attempts: 1 } }, ({ artifact }) => artifact("../x", "text"));
    const { state, errors } = await build(escaping);
    assert.equal(state, "FAILED");
    assert.match(errors[0]?.message ?? "", /leads out of its folder/);
  });
});

describe("a file that is swapped for a link out of its root while it is worked on", () => {
  test("a file replaced by a link out of its root is removed, and nothing of the link's target is read", async (t) => {
    const { build, root, folder, write } = await yard(t);
    write({ "a.txt": "mine" });
    writeFileSync(join(folder, "secret.txt"), "secret");
    const read: string[] = [];
    const swapped = pipeline("swapped")
      .source(files("*.txt", { root }))
      .stage("read", {}, async ({ target }) => {
        rmSync(join(root, "a.txt"), { force: true });
        symlinkSync("../secret.txt", join(root, "a.txt"));
        read.push(new TextDecoder().decode(await target.bytes()));
        return read.at(-1);
      });
    const { state, handle } = await build(swapped);
    assert.deepEqual([state, read], ["SUCCESS", []]);
    await assert.rejects(handle.output("read", "a.txt"), { code: "NO_SUCH_OUTPUT" });
  });
});
