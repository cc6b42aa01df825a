import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Busy } from "../crash/busy.ts";
import { job, type JobContext, open } from "../../src/index.ts";
import { logInto } from "../runtime/parts.ts";
import { Proxy } from "./proxy.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const LEASE = 1_500;

describe("a handler whose lease cannot be renewed", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  const OUTAGES: Record<string, (proxy: Proxy) => unknown> = {
    "is gone": (proxy) => proxy.down(),
    "hangs up": (proxy) => proxy.down("hangs up"),
    "says nothing": (proxy) => proxy.mute(),
  };
  for (const [what, begin] of Object.entries(OUTAGES)) {
    test(`a handler is aborted when its lease has expired, although the server ${what}`, { timeout: 60_000 }, async (t) => {
      const url = await server.createDatabase();
      const proxy = await Proxy.before(url);
      const hf = await open(proxy.url(url), { log: logInto([]) });
      t.after(async () => {
        proxy.unmute();
        await proxy.up();
        await hf.close();
        await proxy.close();
      });
      const { promise: running, resolve: begun } = Promise.withResolvers<void>();
      const { promise: told, resolve: tell } = Promise.withResolvers<{ code: string; at: number }>();
      const long = job({
        name: "long",
        lease: LEASE,
        run: async ({ signal }: JobContext<null>) => {
          signal.addEventListener("abort", () => tell({ code: signal.reason.code, at: performance.now() }));
          begun();
          await told;
        },
      });
      hf.work([long]);
      await hf.enqueue(long, null);
      await running;
      const from = performance.now();
      const busy = new Busy();
      await begin(proxy);
      const { code, at } = await told;
      assert.equal(code, "LEASE_LOST");
      assert.ok(busy.fair(at - from) < LEASE + 500, `it took ${Math.round(at - from)} ms`);
    });
  }
});
