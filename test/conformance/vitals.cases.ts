import assert from "node:assert/strict";
import { add, claim, LEASE, pass, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";

export function vitalsCases(check: Check): void {
  check("an expired lease is counted until it is reclaimed", async ({ store, clock }) => {
    const expired = async () => (await store.maintenance.gauge()).expiredLeases;
    await add(store, {}, {}, {});
    const [first] = await claim(store, { max: 1 });
    assert.equal(await expired(), 0);
    pass(clock, LEASE - 1);
    await claim(store, { max: 1 });
    assert.equal(await expired(), 0, "not a millisecond before");
    pass(clock, 1);
    assert.equal(await expired(), 1);
    await takeBack(store, "stalled", first as NonNullable<typeof first>);
    assert.equal(await expired(), 0);
  });

  check("the size of the database is known", async ({ store }) => {
    const { bytes, unused } = (await store.maintenance.gauge()).size;
    assert.ok(bytes > 10_000 && unused >= 0 && unused < bytes, `${bytes} ${unused}`);
  });
}
