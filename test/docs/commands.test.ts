import assert from "node:assert/strict";
import { test } from "node:test";
import { EXIT } from "../../src/cli/exit.ts";
import { program } from "../../src/cli/program.ts";
import { page } from "./pages.ts";

const { text } = page("docs/commands.md");

test("the page of commands has every exit code", () => {
  const codes = [...text.matchAll(/^\| (\d+) \| /gm)].map(([, code]) => Number(code));
  assert.deepEqual(codes, Object.values(EXIT));
});

test("every command of the queue and of builds is there", async () => {
  const names = new Set((await program()).commands.map((command) => command.name()));
  const wanted =
    "init work status health stop enqueue claim renew settle jobs quarantine queues schedules events recover unlock completion " +
    "run plan builds artifacts metrics audit backup restore salvage doctor";
  assert.deepEqual(
    wanted.split(" ").filter((name) => !names.has(name)),
    [],
  );
});
