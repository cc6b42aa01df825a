import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { type Event, HeldEvents } from "../../src/core/jobs/event.ts";

const event = (seq: number, subject: string): Event => ({
  seq,
  type: "job.succeeded",
  at: 0,
  dedupeKey: String(seq),
  ...(subject === "" ? {} : { job: subject }),
  data: {},
});

test("a rejected event holds back later events of its job, and no others", () => {
  const held = new HeldEvents(0);
  const [a1, b, a2] = [event(1, "a"), event(2, "b"), event(3, "a")];
  assert.equal(held.refuse(a1, 1_000, 1), 1);
  assert.equal(held.holdsBack(b), false);
  held.accept(b);
  assert.equal(held.holdsBack(a2), true);
  assert.deepEqual([held.readTo, held.deliveredTo, held.isEmpty], [3, 0, false]);
  assert.deepEqual(held.due(1_099), []);
  assert.equal(held.nextIn(1_000), 100);
  assert.deepEqual(held.due(1_100), [a1]);
  assert.equal(held.refuse(a1, 1_100, 1), 2, "the back-off doubles");
  assert.equal(held.nextIn(1_100), 200);
  held.accept(a1);
  assert.equal(held.deliveredTo, 2);
  assert.deepEqual(held.due(1_100), [a2], "what waited behind it is due at once");
  held.accept(a2);
  assert.deepEqual([held.deliveredTo, held.isEmpty, held.nextIn(0)], [3, true, undefined]);
});

test("an event that was neither delivered nor held back is read again", () => {
  const held = new HeldEvents(7);
  assert.equal(held.holdsBack(event(8, "a")), false);
  assert.deepEqual([held.readTo, held.deliveredTo], [7, 7]);
});

test("reading stops when too many events are held back, or a crash would repeat too many deliveries", () => {
  const held = new HeldEvents(0);
  held.refuse(event(1, "a"), 0, 0);
  held.advance(event(9_999, "b"));
  assert.equal(held.hasRoom, true);
  held.advance(event(10_000, "b"));
  assert.equal(held.hasRoom, false);
  const full = new HeldEvents(0);
  full.refuse(event(1, "a"), 0, 0);
  for (let seq = 2; seq <= 1_000; seq++) full.holdsBack(event(seq, "a"));
  assert.equal(full.hasRoom, false);
});

test("whatever a sink rejects, every event is accepted in the order of its job, and the position passes no undelivered one", () => {
  fc.assert(
    fc.property(
      fc.array(fc.constantFrom("", "a", "b", "c"), { maxLength: 30 }),
      fc.infiniteStream(fc.boolean()),
      (subjects, refuses) => {
        const events = subjects.map((subject, i) => event(i + 1, subject));
        const accepted: Event[] = [];
        const held = new HeldEvents(0);
        let [now, refusals] = [0, 0];
        const offer = (one: Event) => {
          if (refusals < 100 && refuses.next().value) {
            refusals++;
            held.refuse(one, now, 0);
          } else {
            accepted.push(one);
            held.accept(one);
          }
          assert.ok(events.filter(({ seq }) => seq <= held.deliveredTo).every((before) => accepted.includes(before)));
        };
        for (const one of events) if (!held.holdsBack(one)) offer(one);
        for (; !held.isEmpty; now += held.nextIn(now) ?? 0) held.due(now).forEach(offer);
        assert.equal(accepted.length, events.length);
        for (const subject of ["", "a", "b", "c"]) {
          const seqs = accepted.filter(({ job = "" }) => job === subject).map(({ seq }) => seq);
          assert.deepEqual(
            seqs,
            seqs.toSorted((a, b) => a - b),
          );
        }
        assert.equal(held.deliveredTo, events.length);
      },
    ),
  );
});
