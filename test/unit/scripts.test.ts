import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { runAsync, runSync, type Script, together, wait } from "../../src/store/sql/script.ts";

test("a script that has to wait is rejected in a synchronous transaction", () => {
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

test("a script catches errors of its statements", async () => {
  assert.equal(await runAsync(careful()), "lost");
});

test("scripts run together send their statements in order before they wait", async () => {
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

/** Whatever is given a transaction is a script, and so are a transaction's own statements, `wait` and `together`. */
const CALL =
  /(?<![\w#.?])(?:(?:tx|db)\.(?:all|get|run|returning|each|eachReturning|lock|time|fence)\b|(?!freed\b)[\w#.?]+\((?:tx|db)[,)]|(?:wait|together)(?:<[^()]*>)?\()/g;
const IS_RUN = /(?:yield\*|return|=>|wait\(|function\*)\s*$/;

/** Whether the innermost call that the text is inside of, at its end, is that of `together`. */
function isInTogether(before: string): boolean {
  let open = 0;
  for (let i = before.length - 1; i >= 0; i--) {
    if (before[i] === ")") open++;
    if (before[i] === "(" && open-- === 0) return before.slice(0, i).endsWith("together");
  }
  return false;
}

// A script without `yield*` is not run at all, and neither the compiler nor the linter says so.
for (const path of globSync("src/store/sql/**/*.ts")) {
  test(`${path} runs every script that it creates`, () => {
    const text = readFileSync(path, "utf8").replaceAll(/\/\*\*[^]*?\*\/|\/\/.*/g, "");
    for (const { index, 0: call } of text.matchAll(CALL)) {
      const before = text.slice(0, index);
      assert.ok(IS_RUN.test(before) || isInTogether(before), `${before.split("\n").at(-1)}${call}`);
    }
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
