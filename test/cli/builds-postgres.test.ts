import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import type { Build, Plan } from "../../src/index.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { DOCS, linesOf, openGate, placeWith, writeDoc } from "./build-place.ts";
import type { JsonError, Place } from "./holdfast.ts";

describe("the commands for builds, with --db postgres://…", { skip: noServer }, () => {
  let server: PostgresServer;
  let place: Place;
  let url: string;
  let where: string[];
  before(async () => {
    server = await startServer();
    url = await server.createDatabase();
    place = await placeWith({ a: "anna", b: "slow bert", c: "carl" });
    where = ["--db", url, "--artifacts", join(place.folder, "artifacts")];
  });
  after(async () => {
    await place.remove();
    await server.close();
  });

  test("plan says that everything would run where nothing was, and run needs a folder for artifacts", async () => {
    const plan = await place.json<Plan>(["plan", DOCS, ...where]);
    assert.equal(plan.stages["parse"]?.run, 3);
    assert.equal((await place.json<JsonError>(["builds", ...where], 2)).error.code, "NO_DATABASE", "it was not made");
    const { error } = await place.json<JsonError>(["run", DOCS, "--db", url], 2);
    assert.deepEqual([error.code, /--artifacts/.test(error.hint)], ["ARTIFACTS_NEEDED", true]);
    assert.deepEqual((await place.json<{ items: Build[] }>(["builds", ...where])).items, [], "nothing was begun");
  });

  test("of two runs one exits 4; Ctrl-C leaves a build that resumes, with workers, to SUCCESS", async () => {
    const first = place.start(["run", DOCS, "--concurrency", "1", ...where]);
    await first.said("holding");
    const second = await place.run(["run", DOCS, ...where]);
    assert.equal(second.code, 4, second.stdout + second.stderr);
    assert.match(second.stderr, new RegExp(`run by process ${first.child.pid} `));
    assert.equal((await place.run(["unlock", "docs", ...where])).code, 4);
    first.child.kill("SIGINT");
    await first.said("Stopping");
    await openGate(place);
    assert.equal((await first.ended).code, 130);
    const { code, stdout, stderr } = await place.run(["run", DOCS, "--workers", "1", "--json", ...where]);
    assert.equal(code, 0, stderr);
    const last = linesOf(stdout).at(-1);
    assert.deepEqual([last?.state, last?.spent.usd], ["SUCCESS", 0.3]);
  });

  test("a pause exits 3 and the build resumes with token and budget; plan, list, audit and export show it", async () => {
    for (const name of ["a", "b"]) await writeDoc(place, name, `${name}, changed`);
    const plan = await place.json<Plan>(["plan", DOCS, ...where]);
    assert.deepEqual([plan.stages["parse"]?.run, plan.estimate.usd], [2, 0.2]);
    const paused = await place.run(["run", DOCS, "--budget", "0.1", "--json", ...where]);
    assert.equal(paused.code, 3, paused.stderr);
    const { id, token } = linesOf(paused.stdout).at(-1) as Build;
    const { code, stdout } = await place.run(["run", DOCS, "--token", token ?? "", "--budget", "1", "--json", ...where]);
    assert.equal(code, 0);
    assert.deepEqual([linesOf(stdout).at(-1)?.id, linesOf(stdout).at(-1)?.state], [id, "SUCCESS"]);
    assert.match((await place.run(["audit", "--subject", id, ...where])).stdout, /build\.resumed/);
    assert.equal((await place.json<{ items: Build[] }>(["builds", "list", ...where])).items.length, 2);
    const { path } = await place.json<{ path: string }>(["builds", "export", id, "out", ...where]);
    assert.equal(path, join(place.folder, "out"));
    assert.equal((await place.json<{ removed: number }>(["artifacts", "sweep", ...where])).removed, 0);
  });
});
