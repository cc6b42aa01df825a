import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";
import { folder } from "./parts.ts";

const hold = job({ name: "hold", run: () => {} });
const child = (name: string) => new URL(`./children/${name}.ts`, import.meta.url);

test("a producer validates with the definition alone, and a worker brings the handler", async (t) => {
  const path = join(await folder(t), "work.db");
  const producer = fork(child("apart/producer"), [path]);
  t.after(() => producer.kill("SIGKILL"));
  const [[said], [code]] = await Promise.all([once(producer, "message"), once(producer, "exit")]);
  assert.deepEqual(said, { refused: "INPUT_INVALID", worked: "NO_HANDLER", handlersLoaded: false });
  assert.equal(code, 0);

  const { greeter } = await import("./children/apart/handlers.ts");
  assert.ok("handlersLoaded" in globalThis);
  await using hf = await open(path);
  hf.work([greeter]);
  const done = await hf.jobs.wait("it");
  assert.deepEqual([done.state, done.output, done.queue], ["succeeded", "hello Anna", "mail"]);
  assert.equal((await hf.jobs.counts()).pending, 0);
});

test("a worker without `signals` leaves signal handling to the program", async (t) => {
  const path = join(await folder(t), "work.db");
  await using hf = await open(path);
  for (const mode of ["none", "own"]) {
    const { id } = await hf.enqueue(hold, null);
    const worker = fork(child("unsignalled"), [path, mode]);
    t.after(() => worker.kill("SIGKILL"));
    await once(worker, "message");
    const ended = once(worker, "exit");
    worker.kill("SIGTERM");
    if (mode === "own") {
      assert.deepEqual((await once(worker, "message"))[0], "heard");
      assert.equal((await hf.jobs.get(id))?.state, "running", "nothing was stopped");
      worker.kill("SIGKILL");
    }
    assert.deepEqual(await ended, [null, mode === "own" ? "SIGKILL" : "SIGTERM"]);
    await hf.jobs.cancel(id);
  }
});
