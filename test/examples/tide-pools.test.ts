import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { ROOT } from "../docs/pages.ts";
import { folder, run } from "./run.ts";

test("npm start: killed in the middle and started again, it has paid for one pass and made the same bytes", async (t) => {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as { scripts: Record<string, string> };
  assert.equal(scripts["start"], "node examples/tide-pools/main.ts");

  const path = folder(t);
  const printed = await run("tide-pools", [path]);
  const kill = printed.find((line) => /killed with SIGKILL \(pid \d+\)$/.test(line));
  assert.ok(kill !== undefined && !kill.startsWith("100%"), `it was killed in the middle: ${kill}`);
  const bills = printed.map((line) => line.match(/^ {2}(one pass|killed and resumed) +(\S+) {2}(\d+) requests/) ?? []);
  const [whole, resumed] = bills.filter(({ length }) => length > 0);
  assert.equal(whole?.[2], resumed?.[2]);
  assert.equal(whole?.[3], "24");
  assert.deepEqual(
    printed.filter((line) => /✔|✘/.test(line)).map((line) => line.replace(/\$\S+/, "$")),
    [
      "  ✔ the service billed one pass: $",
      "  ✔ Holdfast counted that, or more for attempts in flight: $",
      "  ✔ finished steps that ran again: 0",
      "  ✔ lost steps: 0",
      "  ✔ the same bytes as without a kill: 50 files",
    ],
  );

  await using hf = await open(join(path, "killed", "work.db"));
  const [build, ...others] = (await hf.builds.list()).items;
  assert.ok(build !== undefined && others.length === 0, "it is one build, which was resumed");
  assert.equal(build.state, "SUCCESS");
  assert.deepEqual(
    Object.entries(build.stages).map(([stage, { ran, cached, failed, left }]) => [stage, ran, cached, failed, left]),
    [
      ["parse", 24, 0, 0, 0],
      ["summarise", 24, 0, 0, 0],
      ["index", 1, 0, 0, 0],
    ],
  );
  const exported = join(path, "killed", "exports", build.id);
  assert.ok(printed.at(-1)?.endsWith(build.id), printed.at(-1));
  const sums = readFileSync(join(exported, "checksums.txt"), "utf8").trimEnd().split("\n");
  assert.equal(sums.length, 51);
  for (const line of sums) {
    const [sum, file] = line.split("  ") as [string, string];
    assert.ok(existsSync(join(exported, file)), file);
    assert.equal(hash("sha256", readFileSync(join(exported, file))), sum, file);
  }
});
