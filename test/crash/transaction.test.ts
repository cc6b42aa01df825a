import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { checkInvariants } from "./invariants.ts";
import { Scene } from "./scene.ts";

describe("a user's row and its job, by", { concurrency: 2 }, () => {
  for (const by of ["hf.transaction", "a handle"] as const) {
    for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
      for (const dies of ["before the job", "before the commit", "after the commit"] as const) {
        test(`${by} of ${driver}, killed ${dies}, leaves both row and job, or neither`, async (t) => {
          const scene = new Scene(t);
          await scene.prepare();
          await scene.witness.query("create table orders (id integer primary key)");
          const child = scene.start("shopper", { by, driver, dies });
          assert.equal((await child.end()).signal, "SIGKILL", child.stderr);

          const committed = dies === "after the commit" ? 1 : 0;
          const hf = await scene.open();
          assert.deepEqual(
            [(await scene.witness.query("select id from orders")).length, (await hf.jobs.counts()).pending],
            [committed, committed],
          );
          const after = await checkInvariants(scene, hf);
          assert.equal(after.filter(({ name, state }) => name === "work" && state === "succeeded").length, committed);
          assert.equal((await scene.witness.query("select id from orders")).length, committed);
        });
      }
    }
  }
});
