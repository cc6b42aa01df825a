import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { LeaseTable } from "../../src/engine/leases.ts";
import type { KeeperThreadData } from "../../src/engine/keeper-thread.ts";

/** The port of a thread as Deno has it: without `close`. */
const WITHOUT_CLOSE = `
  const threads = require("node:worker_threads");
  const { parentPort: port, workerData } = threads;
  threads.parentPort = new Proxy(port, {
    has: (_, name) => name !== "close" && name in port,
    get: (_, name) => (name === "close" ? undefined : typeof port[name] === "function" ? port[name].bind(port) : port[name]),
  });
  require("node:module").syncBuiltinESMExports();
  import(workerData.keeper);
`;

test("the keeper thread ends on request, even if its port cannot be closed", async () => {
  const data: KeeperThreadData = {
    // It is opened when there is something to renew, and there is nothing.
    location: { kind: "postgres", url: "postgres://127.0.0.1:1/none", schema: "holdfast", name: "none", key: "none" },
    process: 1 as ProcessId,
    leaseTable: new LeaseTable().buffer,
    alert: false,
  };
  const keeper = new URL("../../src/engine/keeper-thread.ts", import.meta.url).href;
  const thread = new Worker(WITHOUT_CLOSE, { eval: true, workerData: { ...data, keeper } });
  const ended = once(thread, "exit");
  assert.deepEqual(await once(thread, "message"), [{ type: "awake" }]);
  thread.postMessage("close");
  assert.deepEqual(await ended, [0]);
});
