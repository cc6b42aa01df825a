import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

test("the web app: an order and its job are one commit, a second click is the same job, a refused one leaves no row", async (t) => {
  const path = folder(t);
  const printed = await run("web-app", [path]);
  assert.deepEqual(
    printed.map((line) => line.match(/^(?:POST|GET).*→ \d+/)?.[0]).filter((line) => line !== undefined),
    [
      "POST /orders lamp (1) → 201",
      "POST /orders lamp (1) → 200",
      "POST /orders chairs (4) → 201",
      "POST /orders nothing (0) → 422",
      "GET  /orders/lamp → 200",
      "GET  /orders/chairs → 200",
      "GET  /orders/nothing → 404",
    ],
  );
  // One answer of the carrier was lost; the second call had the same key, and made no second parcel.
  assert.equal(printed.at(-1), "2 orders, 2 jobs, 3 calls, 2 parcels");

  const shop = new DatabaseSync(join(path, "shop.db"), { readOnly: true });
  const orders = shop.prepare("select id, items, parcel from orders order by id").all();
  shop.close();
  await using hf = await open(join(path, "shop.db"), { create: false });
  const jobs = (await hf.jobs.list()).items;
  assert.deepEqual(
    jobs.map(({ id, state, output }) => ({ id, state, output })),
    ["lamp", "chairs"].map((id) => {
      const parcel = orders.find((order) => order["id"] === id)?.["parcel"];
      return { id: `ship ${id}`, state: "succeeded", output: { parcel } };
    }),
  );
  assert.equal(orders.length, 2);
});

test("an example that is given no folder leaves none behind", async (t) => {
  const path = folder(t);
  await run("web-app", [], { TMPDIR: path });
  assert.deepEqual(readdirSync(path), []);
});
