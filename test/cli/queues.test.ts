import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { type JsonError, Place } from "./holdfast.ts";

let place: Place;
let hf: Holdfast;
before(async () => {
  place = await Place.make();
  hf = await open(place.db);
});
after(async () => {
  await hf.close();
  await place.remove();
});

test("queues lists, pauses and resumes; a paused queue hands out nothing", async () => {
  const { id } = await hf.enqueue(job({ name: "mail", run: () => {} }), 1);
  assert.deepEqual(await place.json(["queues", "pause", "mail"]), { queue: "mail", paused: true, changed: true });
  assert.deepEqual(await place.json(["queues", "pause", "mail"]), { queue: "mail", paused: true, changed: false });
  const { items } = await place.json<{ items: { name: string; paused: boolean; counts: { pending: number } }[] }>(["queues"]);
  assert.deepEqual(
    items.map(({ name, paused, counts }) => [name, paused, counts.pending]),
    [["mail", true, 1]],
  );
  const list = await place.run(["queues", "list"]);
  assert.match(
    list.stdout,
    /^QUEUE +PENDING +RUNNING +DONE\/MIN +SUCCEEDED +FAILED +OLDEST +WHY\nmail +paused +1 +0 +0 +0 +0 +\d+s +Queue "mail" is paused\.\n$/,
  );
  assert.equal((await place.run(["claim", "mail", "--worker", "anna"])).code, 1);
  // Paused on purpose is no illness.
  assert.equal((await place.run(["health"])).code, 0);

  const resumed = await place.run(["queues", "resume", "mail"]);
  assert.deepEqual([resumed.code, resumed.stdout], [0, "mail is resumed.\n"]);
  const claimed = await place.json<{ job: { id: string } }>(["claim", "mail", "--worker", "anna"]);
  assert.equal(claimed.job.id, id);
});

test("an unknown queue is refused, unless it is paused ahead", async () => {
  for (const act of ["pause", "resume"]) {
    const { error } = await place.json<JsonError>(["queues", act, "mial"], 1);
    assert.equal(error.code, "NO_SUCH_QUEUE");
    assert.match(error.hint, /^Did you mean "mail"\? Queues: mail\./);
  }
  const paused = await place.run(["queues", "pause", "later", "--ahead"]);
  assert.deepEqual([paused.code, paused.stdout], [0, "later is paused. The queue has no jobs.\n"]);
  assert.equal((await hf.queues.list()).find(({ name }) => name === "later")?.paused, true);
});
