import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

test("the crawler: killed in the middle it resumes, crawls each page once, and no host gets more requests than its limit", async (t) => {
  const path = folder(t);
  const printed = await run("crawler", [path]);
  const [, done, left] = printed[0]?.match(/^killed with (\d+) pages done, \d+ under way, (\d+) known/) ?? [];
  assert.ok(Number(done) >= 60 && Number(done) < 180 && Number(left) > 0, `it was killed in the middle: ${printed[0]}`);
  assert.match(printed[1] as string, /^180 of 180 pages crawled/);
  const hosts = printed.slice(2).map((line) => line.match(/^(\S+): .* at most (\d+) at once$/) ?? []);
  for (const [line, , most] of hosts) assert.ok(Number(most) <= 2, line);

  await using hf = await open(join(path, "crawl.db"));
  const jobs = (await hf.jobs.list({ limit: 1_000 })).items;
  const pages = hosts.flatMap(([, host]) => Array.from({ length: 60 }, (_, i) => `http://${host}/${i + 1}`));
  assert.equal(pages.length, 180);
  assert.deepEqual(jobs.map(({ id }) => id).sort(), pages.sort());
  assert.ok(jobs.every(({ state }) => state === "succeeded"));
  const crashed = jobs.filter(({ crashes }) => crashes === 1);
  assert.ok(crashed.length > 0, "some were under way when their worker was killed");

  for (const [, host] of hosts) {
    const own = jobs.filter(({ id }) => id.startsWith(`http://${host}/`));
    const starts = own.map(({ startedAt }) => startedAt as number).sort((a, b) => a - b);
    for (const [i, at] of starts.entries()) {
      // Twenty at once, and twenty a second from then on.
      const allowed = 20 + (20 * (at - (starts[0] as number))) / 1_000;
      assert.ok(i < allowed + 1, `${i + 1} starts at ${host} in ${at - (starts[0] as number)} ms`);
    }
  }
});
