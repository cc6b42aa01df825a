import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import { branchesOf } from "../../src/cli/commands/completion.ts";
import { program } from "../../src/cli/program.ts";
import { type JsonError, Place } from "./holdfast.ts";

let place: Place;
const scripts = new Map<string, string>();
before(async () => {
  place = await Place.make();
  for (const shell of ["bash", "zsh", "fish"]) {
    const { code, stdout, stderr } = await place.run(["completion", shell]);
    assert.equal(code, 0, stderr);
    const file = join(place.folder, `complete.${shell}`);
    await writeFile(file, stdout);
    scripts.set(shell, file);
  }
});
after(() => place.remove());

/** What a shell offers for the last word; the empty word at its end is where a person presses the key. */
const LINES: [line: string[], offered: string[]][] = [
  [["st"], ["status", "stop"]],
  [
    ["jobs", ""],
    ["list", "show", "why", "retry", "cancel", "remove"],
  ],
  [["jobs", "list", "--st"], ["--state"]],
  [["jobs", "list", "--state", "qua"], ["quarantined"]],
  [
    ["--db", "work", "quarantine", ""],
    ["list", "retry", "purge"],
  ],
  [
    ["completion", ""],
    ["bash", "zsh", "fish"],
  ],
  [["work", "--conc"], ["--concurrency"]],
  [["enqueue", "--db", "complete.ba"], ["complete.bash"]],
];

suite("completion", () => {
  test("knows every command and every option", async () => {
    const branches = branchesOf(await program());
    assert.deepEqual(
      branches.find(({ path }) => path === "holdfast")?.commands.map(({ name }) => name),
      (await program()).commands.map((command) => command.name()),
    );
    for (const { path, options } of branches) {
      const names = new Set(options.flatMap(({ names }) => names));
      for (const common of ["--db", "--config", "--json", "--help"]) assert.ok(names.has(common), `${path} ${common}`);
    }
    const state = branches
      .find(({ path }) => path === "holdfast/jobs/list")
      ?.options.find(({ names }) => names.includes("--state"));
    assert.deepEqual([state?.takesValue, state?.choices.length], [true, 7]);
  });

  test("in bash offers commands, options, their values, and files", { skip: without("bash") }, () => {
    for (const [line, offered] of LINES) {
      const words = ["holdfast", ...line].map((word) => `'${word}'`).join(" ");
      // Without an offer of ours bash completes files by itself.
      const ask = `source '${scripts.get("bash")}'; COMP_WORDS=(${words}); COMP_CWORD=${line.length}; _holdfast
        if [ \${#COMPREPLY[@]} -eq 0 ]; then compgen -f -- '${line.at(-1)}'; else printf '%s\\n' "\${COMPREPLY[@]}"; fi`;
      assert.deepEqual(answers("bash", ["--norc", "-c", ask]), offered.toSorted(), line.join(" "));
    }
  });

  test("in zsh is a script that loads, and offers the same", { skip: without("zsh") }, () => {
    for (const [line, offered] of LINES.slice(0, -1)) {
      const words = ["holdfast", ...line].map((word) => `'${word}'`).join(" ");
      const ask = `compdef() { }; compadd() { shift; print -l -- "$@" }; _files() { }
        _describe() { for one in "\${(@P)2}"; do print -r -- "\${one%%:*}"; done }
        source '${scripts.get("zsh")}'; words=(${words}); CURRENT=${line.length + 1}; PREFIX='${line.at(-1)}'; _holdfast`;
      const all = answers("zsh", ["-f", "-c", ask]);
      // Which of them fit the word is zsh's own business.
      assert.deepEqual(
        all.filter((one) => one.startsWith(line.at(-1) as string)),
        offered.toSorted(),
        line.join(" "),
      );
    }
  });

  test("in fish offers the same", { skip: without("fish") }, () => {
    for (const [line, offered] of LINES) {
      const ask = `source '${scripts.get("fish")}'; complete -C 'holdfast ${line.join(" ")}'`;
      const all = answers("fish", ["--no-config", "-c", ask]).map((one) => one.split("\t")[0] as string);
      assert.deepEqual(all, offered.toSorted(), line.join(" "));
    }
  });

  test("of another shell is refused", async () => {
    const { error } = await place.json<JsonError>(["completion", "tcsh"], 2);
    assert.match(error.message, /Allowed choices are bash, zsh, fish/);
  });
});

function answers(shell: string, args: string[]): string[] {
  const { status, stdout, stderr } = spawnSync(shell, args, { cwd: place.folder, encoding: "utf8" });
  assert.equal(status, 0, stderr);
  assert.equal(stderr, "");
  return stdout
    .split("\n")
    .filter((one) => one !== "")
    .toSorted();
}

function without(shell: string): string | false {
  return spawnSync(shell, ["-c", "true"]).status === 0 ? false : `there is no ${shell} here`;
}
