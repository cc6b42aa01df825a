import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { ROOT } from "../docs/pages.ts";

/** A folder that goes with the test. */
export function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), "holdfast-example-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** Generous: it ends an example that hangs, and decides nothing else. */
const LIMIT = 180_000;

/** What Holdfast logs of attempts that an example lets fail on purpose. */
const LOGGED_FAILURE = /^holdfast (warn|error): job "[^"]+" (failed|timed out)/;

/** Runs an example as a newcomer would, to its end. What it printed, line by line. */
export function run(example: string, args: string[] = [], env: NodeJS.ProcessEnv = {}): Promise<string[]> {
  const { NODE_TEST_CONTEXT: _, FORCE_COLOR: __, ...inherited } = process.env;
  return new Promise((resolve) => {
    const file = join(ROOT, "examples", example, "main.ts");
    const options = { env: { ...inherited, ...env }, timeout: LIMIT };
    const child = execFile(process.execPath, [file, ...args], options, (error, stdout, stderr) => {
      assert.equal(child.exitCode, 0, `${example}: ${error?.killed ? "it did not end by itself" : ""}\n${stdout}${stderr}`);
      const others = stderr.split("\n").filter((line) => line !== "" && !LOGGED_FAILURE.test(line));
      assert.deepEqual(others, []);
      resolve(stdout.trimEnd().split("\n"));
    });
  });
}
