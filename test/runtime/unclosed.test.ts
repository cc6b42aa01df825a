import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { home, test } from "./parts.ts";

const PROGRAM = fileURLToPath(new URL("./children/unclosed.ts", import.meta.url));

test("a program that closes while everything is still starting waits for it, and exits", { timeout: 30_000 }, async (t) => {
  await run(t, "hurry");
});

for (const what of ["enqueue", "claim", "work"]) {
  test(`a program with nothing left to do exits although it closed nothing: ${what}`, { timeout: 30_000 }, async (t) => {
    await run(t, what);
  });
}

async function run(t: TestContext, what: string): Promise<void> {
  const child = spawn(process.execPath, [PROGRAM, await home(t), what], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => child.kill("SIGKILL"));
  const ended = new Promise((resolve) => child.once("exit", resolve));
  assert.equal(await text(child.stdout), "done\n");
  assert.equal(await ended, 0);
}
