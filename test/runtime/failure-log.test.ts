import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { suite } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { job, NonRetryableError, open, RetryAfterError } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import { folder, memory, test } from "./parts.ts";

const run = promisify(execFile);
const source = (name: string) => JSON.stringify(pathToFileURL(join(import.meta.dirname, "../../src", name)).href);

suite("failing jobs are logged", () => {
  test("a retried attempt logs one warning, and a final failure one error", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const flaky = job({
      name: "flaky",
      retry: { attempts: 2, backoff: "fixed", delay: "2s" },
      run: () => {
        throw new TypeError("no connection");
      },
    });
    const { id } = await hf.enqueue(flaky, 1);
    await drain(hf, [flaky]);
    const about = { job: id, name: "flaky", error: "TypeError: no connection" };
    assert.deepEqual(
      logged.map(({ level, message }) => [level, message]),
      [["warn", 'job "flaky" failed; the next attempt starts in 2s']],
    );
    assert.deepEqual(pick(logged[0]?.data), { ...about, attempt: 1 });
    assert.match(JSON.stringify(logged[0]?.data), /"at":"[^"]*failure-log\.test\.ts/);
    await clock.advance("2s");
    await drain(hf, [flaky]);
    assert.deepEqual(
      logged.slice(1).map(({ level, message }) => [level, message]),
      [["error", 'job "flaky" failed']],
    );
    assert.deepEqual(pick(logged[1]?.data), { ...about, attempt: 2 });
  });

  test("an error that is not retried logs one error, and a job that asks to run later logs nothing", async (t) => {
    const { hf, logged } = await memory(t);
    const refused = job({
      name: "refused",
      run: () => {
        throw new NonRetryableError("never");
      },
    });
    const later = job({
      name: "later",
      run: () => {
        throw new RetryAfterError("1h");
      },
    });
    await hf.enqueue(refused, 1);
    await hf.enqueue(later, 1);
    await drain(hf, [refused, later]);
    assert.deepEqual(
      logged.map(({ level, message }) => [level, message]),
      [["error", 'job "refused" failed']],
    );
  });

  test("an attempt past its timeout is logged as timed out", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const slow = job({
      name: "slow",
      timeout: "3s",
      retry: { attempts: 2, backoff: "fixed", delay: "1s" },
      run: ({ signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
    });
    await hf.enqueue(slow, 1);
    hf.work([slow]);
    await clock.advance("3s");
    await clock.advance("5s");
    assert.deepEqual(
      logged.map(({ level, message }) => [level, message]),
      [
        ["warn", 'job "slow" timed out after 3s; the next attempt starts in 1s'],
        ["error", 'job "slow" timed out after 3s'],
      ],
    );
  });

  test("failures are logged to standard error by default, and nowhere with `log: false`", async (t) => {
    const here = await folder(t);
    const program = join(here, "program.ts");
    await writeFile(
      program,
      `import { job, NonRetryableError, open } from ${source("index.ts")};
       import { drain } from ${source("testing/index.ts")};
       const bad = job({ name: "bad", run: () => { throw new NonRetryableError("no"); } });
       const hf = await open(":memory:", process.argv[2] === "silent" ? { log: false } : {});
       await hf.enqueue(bad, 1);
       await drain(hf, [bad]);
       await hf.close();`,
    );
    const { stderr } = await run(process.execPath, [program]);
    assert.match(stderr, /^holdfast error: job "bad" failed \{"job":"\w+","name":"bad","attempt":1,.*\}\n$/);
    assert.equal((await run(process.execPath, [program, "silent"])).stderr, "");
  });

  test("`log: console` works", async () => {
    await (await open(":memory:", { log: console })).close();
  });
});

function pick(data: object = {}): object {
  return Object.fromEntries(Object.entries(data).filter(([name]) => ["job", "name", "attempt", "error"].includes(name)));
}
