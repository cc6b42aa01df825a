import assert from "node:assert/strict";
import { test } from "node:test";
import { Random } from "./random.ts";
import { World } from "./world.ts";

/** What schedules have found, each as a plain case. */

const HOUR = 3_600_000;

function world(): World {
  return new World({ where: "memory", random: () => 0.5 });
}

test("a lock lasts no longer because the clock was set back", async () => {
  const here = world();
  const random = new Random(1);
  const holder = await here.start("local", random);
  const other = await here.start("local", random);
  await other.tick();
  assert.equal(await holder.store.acquireLock("mail", "somebody", "token", 20_000), true);
  here.jump(-HOUR);
  await other.tick();
  await here.pass(20_000);
  assert.equal(await other.store.acquireLock("mail", "somebody else", "another token", 20_000), true);
  await here.close();
});
