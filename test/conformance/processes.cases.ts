import assert from "node:assert/strict";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { add, claim, claimOne, pass, register, settle, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

const HERE = { pid: 4_711, host: "host", boot: "boot-1", program: "indexer" };

export function processCases(check: Check): void {
  check("a registered process is listed with its details", async ({ store, clock }) => {
    assert.deepEqual(await registeredProcesses(store.processes), []);
    const id = await store.processes.register(HERE);
    const [process, ...rest] = await registeredProcesses(store.processes);
    assert.deepEqual(rest, []);
    assert.ok(process);
    const { pid, host, boot, program, startedAt } = process;
    assert.deepEqual({ id: process.id, pid, host, boot, program, startedAt }, { id, ...HERE, startedAt: clock.now() });
  });

  check("a process that holds nothing can be unregistered, once", async ({ store }) => {
    const id = await register(store);
    assert.equal(await store.processes.unregister(id), true);
    assert.equal(await store.processes.unregister(id), false);
    assert.equal(await store.processes.unregister(999 as ProcessId), false);
    assert.deepEqual(await registeredProcesses(store.processes), []);
  });

  check("a process's number is never reused", async ({ store }) => {
    const first = await register(store);
    await store.processes.unregister(first);
    assert.ok((await register(store)) > first);
  });

  check("a process that holds jobs is not unregistered", async ({ store }) => {
    const holder = await register(store);
    await add(store, {}, {});
    const [a, b] = await claim(store, { holder });
    assert.ok(a && b);
    assert.equal(await store.processes.unregister(holder), false);
    await settle(store, a, SUCCEEDED);
    assert.equal(await store.processes.unregister(holder), false);
    assert.equal((await registeredProcesses(store.processes)).length, 1);
    await takeBack(store, "crashed", b);
    assert.equal(await store.processes.unregister(holder), true);
  });

  check("the number of running jobs of each process is known; claims by hand belong to none", async ({ store }) => {
    assert.deepEqual((await store.queries.overview()).running, new Map());
    const [one, two] = [await register(store), await register(store)];
    await add(store, {}, {}, {}, {}, {});
    await claim(store, { holder: one, max: 2 });
    const mine = await claimOne(store, { holder: two });
    await claim(store, { holder: null, max: 1 });
    assert.deepEqual(
      (await store.queries.overview()).running,
      new Map([
        [one, 2],
        [two, 1],
        [null, 1],
      ]),
    );
    await settle(store, mine, SUCCEEDED);
    assert.equal((await store.queries.overview()).running.has(two), false);
  });

  check("a cancelled job no longer belongs to its process", async ({ store }) => {
    const holder = await register(store);
    await add(store, {});
    const { id } = await claimOne(store, { holder });
    await store.cancel(id);
    assert.equal(await store.processes.unregister(holder), true);
  });

  check("a process never probes itself", async ({ store }) => {
    await register(store);
    assert.deepEqual((await store.processes.probe()).others, []);
  });

  check.shared("processes know each other, and survive reopenings until they are unregistered", async (ground) => {
    const { store, another, reopen } = ground;
    const one = await store.processes.register(HERE);
    const other = await another();
    const two = await other.processes.register({ ...HERE, pid: 2 });
    assert.notEqual(one, two);
    assert.deepEqual(
      (await registeredProcesses(store.processes)).map(({ id }) => id),
      [one, two],
    );
    const reopened = await reopen();
    assert.deepEqual(
      (await registeredProcesses(reopened.processes)).map(({ id, pid }) => [id, pid]),
      [
        [one, HERE.pid],
        [two, 2],
      ],
    );
    assert.equal(await reopened.processes.unregister(one), true);
  });

  check.shared("a live process is never taken for dead", async ({ store, another, clock }) => {
    await store.processes.register(HERE);
    const other = await another();
    const two = await other.processes.register({ ...HERE, pid: 2 });
    for (let n = 0; n < 3; n++) {
      const { others: probed } = await store.processes.probe();
      assert.deepEqual(
        probed.map(({ process, life }) => [process.id, process.pid, life]),
        [[two, 2, "alive"]],
      );
      pass(clock, 86_400_000);
    }
  });

  check.shared("a change by another process is noticed", async ({ store, another }) => {
    const other = await another();
    const ready = await new Promise<ReadonlySet<string> | null>((resolve) => {
      store.onChange(({ own, ready }) => own || resolve(ready));
      void add(other, {});
    });
    assert.ok(ready === null || ready.has("work"), "what it says is so, where it can be told from here");
  });

  check.shared("a database has one identity, for every process and for ever", async ({ store, another, reopen }) => {
    const { databaseId, durability } = store;
    assert.ok(databaseId.length >= 16);
    assert.equal((await another()).databaseId, databaseId);
    const reopened = await reopen();
    assert.deepEqual([reopened.databaseId, reopened.durability], [databaseId, durability]);
  });
}
