import assert from "node:assert/strict";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, type TestContext, test } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";

const order = job<{ item: number }>({ name: "order", run: () => {} });
const CHILDREN = `/proc/${process.pid}/task/${process.pid}/children`;
const noChildren = existsSync(CHILDREN) ? false : "it cannot be told here who was started";

describe("a whole check", () => {
  test("a whole check runs in another process, and blocks no caller", { skip: noChildren }, async (t) => {
    const { hf, besides } = await scene(t);
    const checking = hf.check();
    const checker = await started();
    process.kill(checker, "SIGSTOP");
    for (let item = 0; item < 20; item++) await hf.enqueue(order, { item });
    process.kill(checker, "SIGCONT");
    assert.deepEqual(await checking, { ok: true, findings: [] });
    assert.deepEqual(besides(), [], "and of its copy nothing is left");
  });

  test("a killed check reports that it found nothing out, and harms no other process", { skip: noChildren }, async (t) => {
    const { hf, besides } = await scene(t);
    const checking = hf.check();
    process.kill(await started(), "SIGKILL");
    await assert.rejects(checking, /the process for "checkCopy" ended \(SIGKILL\) without an answer/);
    assert.deepEqual(besides(), []);
    await hf.enqueue(order, { item: 1 });
    assert.deepEqual(await hf.check(), { ok: true, findings: [] });
  });

  test("a check removes files that a killed check left beside the database", async (t) => {
    const { hf, folder, besides } = await scene(t);
    const left = join(folder, ".holdfast-backups", "0123456789abcdef");
    mkdirSync(left, { recursive: true });
    writeFileSync(join(left, "database"), "half a copy");
    assert.deepEqual(await hf.check(), { ok: true, findings: [] });
    assert.deepEqual(besides(), []);
  });
});

async function scene(t: TestContext): Promise<{ hf: Holdfast; folder: string; besides: () => string[] }> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-check-"));
  const hf = await open(join(folder, "work.db"));
  t.after(async () => {
    await hf.close();
    rmSync(folder, { recursive: true, force: true });
  });
  await hf.enqueueMany(order, [{ item: 1 }, { item: 2 }]);
  return { hf, folder, besides: () => readdirSync(folder).filter((name) => !name.startsWith("work.db")) };
}

/** The process that checks, as soon as it is there. */
async function started(): Promise<number> {
  for (;;) {
    const pids = readFileSync(CHILDREN, "utf8").trim().split(" ").filter(Boolean);
    const found = pids.find((pid) => readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("task-process"));
    if (found !== undefined) return Number(found);
    await new Promise((resolve) => setImmediate(resolve));
  }
}
