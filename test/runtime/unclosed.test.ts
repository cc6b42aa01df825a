import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { home, test } from "./parts.ts";

const PROGRAM = fileURLToPath(new URL("./children/unclosed.ts", import.meta.url));

for (const what of ["enqueue", "claim", "work"]) {
  test(`a program that has nothing more to do ends, though nobody closed anything: ${what}`, { timeout: 30_000 }, async (t) => {
    const child = spawn(process.execPath, [PROGRAM, await home(t), what], { stdio: ["ignore", "pipe", "inherit"] });
    t.after(() => child.kill("SIGKILL"));
    const ended = new Promise((resolve) => child.once("exit", resolve));
    assert.equal(await text(child.stdout), "done\n");
    assert.equal(await ended, 0);
  });
}
