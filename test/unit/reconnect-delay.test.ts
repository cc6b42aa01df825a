import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { reconnectDelay } from "../../src/store/postgres/connection/faults.ts";

const LONGEST = 1_000;
const losses = fc.nat({ max: 5_000 });
const drawn = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

test("the first reconnect is tried at once", () => {
  assert.equal(
    reconnectDelay(0, () => 0.99),
    0,
  );
});

test("the delays double from fifty milliseconds to a second, and stay there", () => {
  const pauses = [1, 2, 3, 4, 5, 6, 7, 60].map((lost) => Math.round(reconnectDelay(lost, () => 1)));
  assert.deepEqual(pauses, [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
});

test("a delay is always a number and at most a second", () => {
  fc.assert(
    fc.property(losses, drawn, (lost, random) => {
      const pause = reconnectDelay(lost, () => random);
      assert.ok(pause >= 0 && pause <= LONGEST, `${pause}`);
    }),
  );
});

test("with the same random number, a later reconnect never waits less", () => {
  fc.assert(
    fc.property(losses, drawn, (lost, random) => reconnectDelay(lost + 1, () => random) >= reconnectDelay(lost, () => random)),
  );
});

test("jitter takes up to half of a delay away, evenly, so that clients reconnect apart", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 5_000 }), drawn, (lost, random) => {
      const [least, most] = [reconnectDelay(lost, () => 0), reconnectDelay(lost, () => 1)];
      assert.equal(least, most / 2);
      assert.ok(Math.abs(reconnectDelay(lost, () => random) - (least + random * (most - least))) < 1e-6);
    }),
  );
});
