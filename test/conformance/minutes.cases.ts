import assert from "node:assert/strict";
import { countAttempt, noMinute, type QueueMinute } from "../../src/core/jobs/minutes.ts";
import type { Check } from "./suite.ts";

function minuteOf(queue: string, minute: number, attempts: number): QueueMinute {
  const counts = noMinute();
  for (let i = 0; i < attempts; i++) countAttempt(counts, { end: "succeeded", waitMs: 30, runMs: 2_000, byHand: true });
  return { queue, minute, ...counts };
}

export function minuteCases(check: Check): void {
  check("the counts of a minute add up over workers, and to the total of their queue", async ({ store }) => {
    await store.queues.addMinutes([minuteOf("mail", 100, 2), minuteOf("pdf", 100, 1)], 0);
    await store.queues.addMinutes([minuteOf("mail", 100, 3)], 0);
    await store.queues.addMinutes([minuteOf("mail", 101, 4)], 0);
    assert.deepEqual(await store.queues.minutes({ from: 100 }), [
      minuteOf("mail", 100, 5),
      minuteOf("pdf", 100, 1),
      minuteOf("mail", 101, 4),
    ]);
    assert.deepEqual(await store.queues.minutes({ from: 101, queue: "mail" }), [minuteOf("mail", 101, 4)]);
    assert.deepEqual(await store.queues.minutes({ from: 101, queue: "pdf" }), []);
    assert.deepEqual(await store.queues.minutes("totals"), [minuteOf("mail", 0, 9), minuteOf("pdf", 0, 1)]);
  });

  check("minutes are summed by steps", async ({ store }) => {
    await store.queues.addMinutes(
      [minuteOf("mail", 119, 1), minuteOf("mail", 120, 2), minuteOf("mail", 179, 3), minuteOf("pdf", 150, 4)],
      0,
    );
    assert.deepEqual(await store.queues.minutes({ from: 100, step: 60 }), [
      minuteOf("mail", 60, 1),
      minuteOf("mail", 120, 5),
      minuteOf("pdf", 120, 4),
    ]);
  });

  check("old minutes are removed, and the totals stay", async ({ store }) => {
    await store.queues.addMinutes([minuteOf("mail", 100, 1)], 0);
    await store.queues.addMinutes([minuteOf("mail", 200, 1)], 150);
    assert.deepEqual(await store.queues.minutes({ from: 0 }), [minuteOf("mail", 200, 1)]);
    assert.deepEqual(await store.queues.minutes("totals"), [minuteOf("mail", 0, 2)]);
  });

  check("two workers that write the same minutes at once lose none", async ({ store }) => {
    const both = [minuteOf("a", 7, 1), minuteOf("b", 7, 1)];
    await Promise.all(Array.from({ length: 8 }, (_, i) => store.queues.addMinutes(i % 2 === 0 ? both : both.toReversed(), 0)));
    assert.deepEqual(await store.queues.minutes("totals"), [minuteOf("a", 0, 8), minuteOf("b", 0, 8)]);
  });
}
