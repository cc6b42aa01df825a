import assert from "node:assert/strict";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

test("the background jobs: a user and the user's mail are one commit, a busy mail server is asked again, the digest has its schedule", async (t) => {
  const path = folder(t);
  assert.deepEqual(await run("background-jobs", [path]), [
    "POST /users ada@example.org → 201",
    "POST /users ada@example.org → 200",
    "POST /users grace@example.org → 201",
    "POST /users no-address → 422",
    ...["the mail to ada@example.org", "the mail to grace@example.org"].map(
      (mail, i) => `${mail}: succeeded in attempt ${3 - 2 * i}`,
    ),
    "the digest: succeeded; Digest for the team: 2 users",
    "3 mails were sent",
  ]);

  const app = new DatabaseSync(join(path, "app.db"), { readOnly: true });
  const users = app.prepare("select email from users order by email").all();
  app.close();
  assert.deepEqual(
    users.map(({ email }) => email),
    ["ada@example.org", "grace@example.org"],
  );
  await using hf = await open(join(path, "app.db"), { create: false });
  assert.deepEqual(
    (await hf.jobs.list()).items.map(({ name, state }) => [name, state]),
    [
      ["welcome", "succeeded"],
      ["welcome", "succeeded"],
      ["digest", "succeeded"],
    ],
  );
  const [schedule] = await hf.schedules.list();
  assert.deepEqual([schedule?.key, schedule?.cron, schedule?.timezone], ["digest", "0 7 * * *", "Europe/Berlin"]);
});
