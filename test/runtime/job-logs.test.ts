import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { suite } from "node:test";
import { pathToFileURL } from "node:url";
import { job, type JobContext, type LogLine, open } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import { folder, memory, test } from "./parts.ts";

const LIBRARY = JSON.stringify(pathToFileURL(join(import.meta.dirname, "../../src/index.ts")).href);

const logging = (logs: number | undefined, run: (context: JobContext<unknown>) => void) =>
  job({
    name: "talk",
    queue: { name: "talk", ...(logs === undefined ? {} : { logs }) },
    retry: { attempts: 2, delay: 1 },
    run,
  });
const text = (lines: LogLine[] = []) => lines.map(({ level, message }) => `${level} ${message}`);

suite("stored job logs", () => {
  test("a queue that keeps logs stores each attempt's log lines, and still writes them to the log", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const talk = logging(10, ({ log, attempt }) => {
      log.debug("not stored");
      log.info("begun", { attempt });
      log.warn("odd");
      if (attempt === 1) throw new Error("no");
    });
    const { id } = await hf.enqueue(talk, 1);
    await drain(hf, [talk]);
    await clock.advance("1s");
    await drain(hf, [talk]);
    const attempts = await hf.jobs.attempts(id);
    assert.deepEqual(
      attempts.map(({ outcome, log }) => [outcome, text(log)]),
      [
        ["failed", ["info begun", "warn odd"]],
        ["succeeded", ["info begun", "warn odd"]],
      ],
    );
    assert.deepEqual(attempts[0]?.log?.[0]?.data, { attempt: 1 });
    assert.equal(logged.filter(({ message }) => message === "begun").length, 2);
  });

  test("a queue without `logs` stores none", async (t) => {
    const { hf } = await memory(t);
    const talk = logging(undefined, ({ log }) => log.info("begun"));
    const { id } = await hf.enqueue(talk, 1);
    await drain(hf, [talk]);
    assert.equal((await hf.jobs.attempts(id))[0]?.log, undefined);
  });

  test("the newest lines are kept, long ones are cut, and data that is not JSON becomes text", async (t) => {
    const { hf } = await memory(t);
    const talk = logging(3, ({ log }) => {
      for (let i = 0; i < 100; i++) log.info(`line ${i}`);
      log.info("x".repeat(10_000));
      log.info("data", { text: "y".repeat(50_000) });
      log.info("odd data", { big: 1n });
    });
    const { id } = await hf.enqueue(talk, 1);
    await drain(hf, [talk]);
    const [{ log = [] } = {}] = await hf.jobs.attempts(id);
    assert.deepEqual(
      log.map(({ message }) => message.slice(0, 8)),
      ["xxxxxxxx", "data", "odd data"],
    );
    assert.equal(log[0]?.message.length, 2_000);
    assert.ok(JSON.stringify(log[1]?.data).length < 9_000);
    assert.equal(typeof log[2]?.data, "string");
  });

  test("lines logged before a kill are shown with the crashed attempt", async (t) => {
    const db = join(await folder(t), "work.db");
    const program = `
      import { job, open } from ${LIBRARY};
      const hf = await open(${JSON.stringify(db)}, { log: false });
      const talk = job({ name: "talk", queue: { name: "talk", logs: 5 }, run: async ({ log, id }) => {
        log.info("the last words");
        while ((await hf.jobs.attempts(id))[0]?.log === undefined) await new Promise((resolve) => setImmediate(resolve));
        process.stdout.write(id);
        await new Promise(() => {});
      } });
      await hf.enqueue(talk, 1);
      hf.work([talk]);`;
    const worker = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "inherit"] });
    const exited = once(worker, "exit");
    const [id] = (await once(worker.stdout, "data")) as [Buffer];
    worker.kill("SIGKILL");
    await exited;
    await using hf = await open(db);
    await hf.recovery.recoverStale();
    const [attempt] = await hf.jobs.attempts(String(id));
    assert.deepEqual([attempt?.outcome, text(attempt?.log)], ["crashed", ["info the last words"]]);
  });

  test("`logs` must be a whole number from 0 to 1000", () => {
    for (const logs of [-1, 1.5, 1_001, true as unknown as number]) {
      assert.throws(() => logging(logs, () => {}), { code: "NUMBER_INVALID", message: /`logs` of the queue .* from 0 to 1000/ });
    }
  });
});
