import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { runAsync, runSync, type Script, together, wait } from "../../src/store/sql/script.ts";

test("a script that has to wait is refused where nothing may wait", () => {
  assert.equal(runSync(wait(7)), 7);
  assert.throws(() => runSync(wait(Promise.resolve(7))), /cannot wait/);
});

function* careful(): Script<string> {
  try {
    yield* wait(Promise.reject(new Error("lost")));
    return "never";
  } catch (error) {
    return (error as Error).message;
  }
}

test("a script catches what an answer throws, as if it had thrown it itself", async () => {
  assert.equal(await runAsync(careful()), "lost");
});

test("what runs together is sent in order before anything is waited for", async () => {
  const sent: string[] = [];
  function* send(name: string): Script<string> {
    sent.push(name);
    return yield* wait(Promise.resolve(name));
  }
  function* twice(): Script<string> {
    return (yield* send("a")) + (yield* send("b"));
  }
  function* both(): Script<readonly string[]> {
    return yield* together(twice(), send("c"));
  }
  assert.deepEqual(await runAsync(both()), ["ab", "c"]);
  assert.deepEqual(sent, ["a", "c", "b"]);
});

/** Whatever is given a transaction is a script, and so are a transaction's own statements. */
const CALL = /(?<![\w#.])(?:(?:tx|db)\.(?:all|get|run|returning|lock|time|fence)\b|(?!freed\b)[\w#.]+\((?:tx|db)[,)])/g;
const IS_RUN = /(?:yield\* |return |=> |wait\(|together\((?:.*, )?)$/;

// A script without `yield*` is not run at all, and neither the compiler nor the linter says so.
for (const path of globSync("src/store/sql/**/*.ts")) {
  test(`${path} runs every script that it makes`, () => {
    for (const line of readFileSync(path, "utf8").split("\n"))
      for (const { index } of line.matchAll(CALL)) assert.match(line.slice(0, index), IS_RUN, line.trim());
    assert.doesNotMatch(readFileSync(path, "utf8"), /(?<!yield\* |=> |return |function\* )\b(wait|together)\(/);
  });
}

// Hand-written code runs a script of `sql/` with runSync or runAsync.
for (const path of globSync("src/store/{sqlite,postgres}/**/*.ts")) {
  test(`${path} runs the scripts that it calls`, () => {
    for (const line of readFileSync(path, "utf8").split("\n"))
      for (const { index } of line.matchAll(/(?:this\.#)?(?:parts\.)?(?:audit|recoveryLog)\.(?:add|record)\(tx/g))
        assert.match(line.slice(0, index), /run(?:Sync|Async)\($/, line.trim());
  });
}
