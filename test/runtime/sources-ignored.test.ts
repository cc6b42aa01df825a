import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { compareIds } from "../../src/core/text/ids.ts";
import { SourceTree } from "./source-tree.ts";
import { LONG } from "../selection.ts";

describe("ignore files", () => {
  test("ignore files apply from their folder down, deeper ones first, with exceptions", async (t) => {
    const tree = new SourceTree(t, {
      ".gitignore": "*.log\n/build/\nsecret\n# a comment\n\n",
      "a.log": "",
      "a.md": "",
      "build/x": "",
      "sub/build/x": "",
      "sub/.gitignore": "!keep.log\n/local\n",
      "sub/a.log": "",
      "sub/keep.log": "",
      "sub/local": "",
      "sub/deep/local": "",
      "sub/deep/keep.log": "",
      "sub/deep/.gitignore": "keep.log",
      "sub/secret/x": "",
      "other/keep.log": "",
    });
    assert.deepEqual(await tree.ids(), ["a.md", "sub/build/x", "sub/deep/local", "sub/keep.log"]);
  });

  test("a folder that a deeper ignore file excepts is listed with its contents", async (t) => {
    const tree = new SourceTree(t, { ".gitignore": "b/", "a/.gitignore": "!b/", "a/b/c": "", "b/c": "" });
    assert.deepEqual(await tree.ids(), ["a/b/c"]);
  });

  test("Holdfast's ignore file wins over git's beside it", async (t) => {
    const tree = new SourceTree(t, {
      ".gitignore": "*.pdf\n",
      ".holdfastignore": "!*.pdf\n*.tmp\n",
      "a.pdf": "",
      "a.tmp": "",
      "a.md": "",
    });
    assert.deepEqual(await tree.ids(), ["a.md", "a.pdf"]);
  });

  test("ignore files work in folders with odd names, with a byte order mark and with other line ends", async (t) => {
    const tree = new SourceTree(t, {
      "[a]*/.gitignore": "\u{feff}x\r\n\\!y\r\n",
      "[a]*/x": "",
      "[a]*/!y": "",
      "[a]*/z": "",
      "ab/x": "",
    });
    assert.deepEqual(await tree.ids(), ["[a]*/z", "ab/x"]);
  });

  test("ignore files above the root, and folders with that name, do not count", async (t) => {
    const tree = new SourceTree(t, { "../.gitignore": "*", "a/x": "", ".gitignore/x": "", "b/x": "" });
    tree.link("a/.gitignore", "../../.gitignore");
    tree.write("b/rules", "x");
    tree.link("b/.gitignore", "rules");
    assert.deepEqual(await tree.ids(), ["a/x", "b/rules"], "by a link within the root they do");
  });

  test("ignore patterns are case-sensitive", async (t) => {
    const tree = new SourceTree(t, { ".gitignore": "README", readme: "" });
    assert.deepEqual(await tree.ids(), ["readme"]);
  });

  test("a listing leaves out what git leaves out", { skip: hasGit() ? false : "there is no git" }, async (t) => {
    const name = fc.constantFrom("a", "b", "ab", "a.b", "[a]", "a b");
    const id = fc.array(name, { minLength: 1, maxLength: 4 }).map((names) => names.join("/"));
    const part = fc.constantFrom("a", "b", "*", "a*", "?", "**", "[ab]", "\\[a\\]", "*.b", "a b", "ab");
    const rule = fc
      .tuple(
        fc.constantFrom("", "", "!"),
        fc.constantFrom("", "/"),
        fc.array(part, { minLength: 1, maxLength: 3 }),
        fc.constantFrom("", "", "/", " "),
      )
      .map(([not, from, parts, end]) => `${not}${from}${parts.join("/")}${end}`);
    const rules = fc.array(rule, { minLength: 1, maxLength: 4 });
    const folders = fc.array(fc.tuple(fc.oneof(fc.constant(""), id), rules), { maxLength: 3 });
    await fc.assert(
      fc.asyncProperty(fc.uniqueArray(id, { minLength: 3, maxLength: 15 }), folders, async (ids, folders) => {
        const tree = new SourceTree(t);
        const kept = ids.filter((one) => !ids.some((other) => other.startsWith(`${one}/`)));
        for (const one of kept) tree.write(one);
        for (const [folder, lines] of folders) {
          if (kept.some((one) => one === folder || folder.startsWith(`${one}/`))) continue;
          tree.write(`${folder}/.gitignore`, lines.join("\n"));
        }
        const git = (...words: string[]) =>
          execFileSync("git", ["-c", "core.excludesFile=", ...words], { cwd: tree.root, encoding: "utf8" });
        git("init", "-q");
        const shown = git("ls-files", "-z", "--others", "--exclude-per-directory=.gitignore").split("\0");
        const expected = shown.filter((one) => one !== "" && !one.endsWith(".gitignore"));
        assert.deepEqual(await tree.ids(), expected.toSorted(compareIds));
        rmSync(tree.base, { recursive: true });
      }),
      { numRuns: LONG ? 1_000 : 40 },
    );
  });
});

function hasGit(): boolean {
  try {
    execFileSync("git", ["--version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}
