import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { linesOf, newest } from "./build-place.ts";
import { fixture, Place } from "./holdfast.ts";

const LEAVES = fixture("leaves.ts");
const SAYS = /^A handler has ended this process in the middle of its work, with process\.exit\((\d+)\)\.\nhint: /m;

let place: Place;
before(async () => void (place = await Place.make()));
after(() => place.remove());

for (const code of ["0", "3"]) {
  test(`a handler that calls process.exit(${code}) ends run with 1, and the next run resumes the build`, async () => {
    const left = await place.run(["run", LEAVES, "--json", "--rerun", "say"], { env: { LEAVES_WITH: code } });
    assert.equal(left.code, 1, left.stderr);
    assert.equal(SAYS.exec(left.stderr)?.[1], code);
    const { id } = await newest(place);
    const { code: again, stdout, stderr } = await place.run(["run", LEAVES, "--json"]);
    assert.equal(again, 0, stderr);
    assert.deepEqual([linesOf(stdout).at(-1)?.id, linesOf(stdout).at(-1)?.state], [id, "SUCCESS"]);
  });
}

test("so it ends builds resume, and work", async () => {
  const env = { LEAVES_WITH: "0" };
  assert.equal((await place.run(["run", LEAVES, "--rerun", "say"], { env })).code, 1);
  const { id } = await newest(place);
  const resumed = await place.run(["builds", "resume", id, "--file", LEAVES], { env });
  assert.equal(resumed.code, 1, resumed.stdout);
  assert.match(resumed.stderr, SAYS);
  assert.equal((await place.run(["enqueue", "leaving", "--module", LEAVES])).code, 0);
  const worked = await place.run(["work", LEAVES], { env });
  assert.equal(worked.code, 1, worked.stdout);
  assert.match(worked.stderr, SAYS);
});

test("what an isolated handler prints goes to standard error, and its process.exit is its own crash", async () => {
  const { code, stdout, stderr } = await place.run(["run", fixture("prints.ts"), "--json"]);
  assert.equal(code, 1);
  const last = linesOf(stdout).at(-1);
  assert.deepEqual([last?.state, last?.errors.map(({ target }) => target)], ["FAILED", ["leaves"]]);
  assert.deepEqual(last?.stages["say"], { ran: 1, cached: 0, failed: 1, left: 0 });
  for (const text of ["said of a", "written of a", "said of leaves"]) assert.match(stderr, new RegExp(`^${text}$`, "m"));
  assert.doesNotMatch(stdout, /(said|written) of/);
});
