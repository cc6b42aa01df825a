import assert from "node:assert/strict";
import { test } from "node:test";
import type { Command } from "commander";
import { EXIT } from "../../src/cli/exit.ts";
import { program } from "../../src/cli/program.ts";
import { page } from "./pages.ts";

const { text } = page("docs/commands.md");

test("the page of commands has a line for each, with what it takes and what it does", async () => {
  const rows = [...text.matchAll(/^\| `(holdfast .*)` \| (.*) \|$/gm)].map(([row]) => row);
  const expected = leavesOf(await program()).map((command) => {
    return `| \`${usageOf(command).replaceAll("|", "\\|")}\` | ${command.summary()} |`;
  });
  assert.deepEqual(rows, expected, `The rows should be:\n${expected.join("\n")}`);
});

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

/** Commands that do something; a group alone does not. */
function leavesOf(command: Command): Command[] {
  const children = command.commands.flatMap((child) => leavesOf(child as Command));
  const isGroup = command.parent === null || (children.length > 0 && command.registeredArguments.length === 0 && !acts(command));
  return isGroup ? children : [command, ...children];
}

function acts(command: Command): boolean {
  return (command as unknown as { _actionHandler: unknown })._actionHandler !== null;
}

function usageOf(command: Command): string {
  const takes = command.registeredArguments.map((argument) => {
    const name = argument.variadic ? `${argument.name()}...` : argument.name();
    return argument.required ? `<${name}>` : `[${name}]`;
  });
  return [pathOf(command), ...takes].join(" ");
}

function pathOf(command: Command): string {
  return command.parent === null ? command.name() : `${pathOf(command.parent as Command)} ${command.name()}`;
}
