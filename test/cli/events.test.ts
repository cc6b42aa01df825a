import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { type Event, type Holdfast, job, open } from "../../src/index.ts";
import { delivered, sink } from "../runtime/event-parts.ts";
import { logInto } from "../runtime/parts.ts";
import { JOBS, type JsonError, Place } from "./holdfast.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

let place: Place;
let hf: Holdfast;
const told = job<number>({ name: "told", queue: { name: "loud", events: true }, run: () => {} });

before(async () => {
  place = await Place.make();
  hf = await open(place.db, { log: logInto([]) });
});
after(async () => {
  await hf.close();
  await place.remove();
});

test("events shows the last of them, of a job or of some types, and lines of JSON", async () => {
  const nothing = await place.run(["events"]);
  assert.deepEqual([nothing.code, nothing.stdout], [0, "No events.\n"]);
  const [first, second] = await hf.enqueueMany(told, [1, 2]);
  await hf.jobs.cancel(first?.id as string);
  await hf.queues.pause("a queue");
  await hf.queues.resume("a queue");

  const { stdout } = await place.run(["events", "--limit", "3"]);
  const lines = stdout.trimEnd().split("\n");
  assert.match(lines[0] ?? "", /^SEQ +AT +TYPE +JOB OR BUILD +DATA$/);
  assert.match(lines[1] ?? "", new RegExp(`job.cancelled +${first?.id} +{"id":`));
  assert.match(lines[2] ?? "", /queue.paused +{"queue":"a queue"}$/);
  assert.equal(lines.length, 4);

  const all = await events(["events"]);
  assert.deepEqual(all, await hf.engine.store.events.page({ after: 0, limit: 10 }));
  assert.deepEqual(types(await events(["events", "--type", "queue.*", "--limit", "1"])), ["queue.resumed"]);
  assert.deepEqual(types(await events(["events", "--job", first?.id ?? ""])), ["job.enqueued", "job.cancelled"]);
  assert.deepEqual(
    (await events(["events", "--type", "job.enqueued"])).map(({ job }) => job),
    [first?.id, second?.id],
  );
});

test("events rejects a type that does not exist, with the one that was meant", async () => {
  for (const more of [[], ["--follow"]]) {
    const { code, stderr } = await place.run(["events", "--type", "job.suceeded", ...more]);
    assert.equal(code, 2);
    assert.match(stderr, /no event type "job\.suceeded"[\s\S]*Did you mean "job\.succeeded"/);
  }
});

test("events --follow continues with new events, without a gap, leaves nothing behind, and exits 0 on Ctrl-C", async (t) => {
  const running = place.start(["events", "--follow", "--limit", "1", "--type", "queue.*"]);
  t.after(() => running.child.kill("SIGKILL"));
  await running.said("queue.resumed");
  await hf.enqueue(told, 3);
  await hf.queues.pause("later");
  await running.said('queue.paused     {"queue":"later"}');
  running.child.kill("SIGINT");
  const { code, stdout } = await running.ended;
  assert.equal(code, 0);
  assert.equal(stdout.trimEnd().split("\n").length, 2);
  assert.deepEqual(await hf.engine.store.events.sinks(), []);
  assert.equal((await registeredProcesses(hf.engine.store.processes)).length, 1);
});

test("events sinks shows who is how far behind and why, and forget drops one", async () => {
  const none = await place.run(["events", "sinks"]);
  assert.equal(none.stdout, "No sinks or subscribers.\n");
  const off = hf.events.subscribe(() => Promise.reject(new Error("mail is down")), { name: "mail" });
  await hf.queues.pause("another");
  await sink(hf, "mail", ({ failures }) => failures > 0);
  await hf.engine.store.events.position({ name: "idle", kind: "file" });
  const { sinks } = await place.json<{ sinks: { name: string; behind: number; error: string | null }[] }>(["events", "sinks"]);
  assert.deepEqual(
    sinks.map(({ name, behind, error }) => [name, behind, error]),
    [
      ["idle", 0, null],
      ["mail", 1, "mail is down"],
    ],
  );
  await off();
  const { stdout } = await place.run(["events", "sinks"]);
  assert.match(stdout, /^NAME +KIND +BEHIND +OLDEST +DELIVERED +FAILED +ERROR\n/);
  assert.match(stdout, /\nmail +subscriber +1 +\d+s +never +\d× +mail is down \(\d+s ago\)\n/);

  const forgot = await place.run(["events", "forget", "mail"]);
  assert.deepEqual([forgot.code, forgot.stdout], [0, "Forgot mail; it was 1 behind.\n"]);
  const { error } = await place.json<JsonError>(["events", "forget", "mail"], 1);
  assert.deepEqual([error.code, error.hint], ["NO_SUCH_SINK", "Sinks and subscribers: idle."]);
});

test("work delivers to the sinks of its config, from the config's folder; who only looks does not", async (t) => {
  const own = await Place.make();
  const config = `export default { modules: [${JSON.stringify(JOBS)}], sinks: { log: { type: "file", path: "events.jsonl" } } };`;
  writeFileSync(join(own.folder, "holdfast.config.ts"), config);
  const running = own.start(["work"]);
  t.after(() => running.child.kill("SIGKILL"));
  await running.said("Working on");
  const beside = await open(own.db);
  await beside.queues.pause("something");
  await delivered(beside, "log");
  running.child.kill("SIGTERM");
  await running.ended;
  assert.match(readFileSync(join(own.folder, "events.jsonl"), "utf8"), /^{"seq":\d+,"type":"queue.paused",.*\n$/);
  await beside.queues.resume("something");
  await own.run(["status"]);
  assert.equal((await beside.engine.store.events.sinks())[0]?.behind, 1);
  await beside.close();
  await own.remove();
});

async function events(args: string[]): Promise<Event[]> {
  const { code, stdout, stderr } = await place.run([...args, "--json"]);
  assert.equal(code, 0, stderr);
  return stdout
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Event);
}

function types(list: Event[]): string[] {
  return list.map(({ type }) => type);
}
