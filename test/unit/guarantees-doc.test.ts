import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, test } from "node:test";
import { isGenerated, type Page, page, pages, ROOT } from "../docs/pages.ts";

/** The promises that are built; each has a section, and in it tests that attack it. */
const BUILT = ["G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10", "G11"];

test("each promise has a section with tests that try to break it", () => {
  const { text } = page("docs/guarantees.md");
  const sections = new Map(text.split(/^## /m).map((section) => [section.split(/[.\s]/)[0], section]));
  for (const promise of BUILT) {
    const section = sections.get(promise);
    assert.ok(section, `${promise} has no section`);
    assert.match(section, /^### What it does not cover$/m, promise);
    const named = citations(section).reduce((sum, { names }) => sum + names.length, 0);
    assert.ok(named >= 3, `${promise} names ${named} tests`);
  }
  const others = [...sections.keys()].filter((name) => /^G\d+$/.test(name ?? "") && !BUILT.includes(name ?? ""));
  assert.deepEqual(others, [], "nothing is promised that is not built");
});

describe("of everything that the docs name", () => {
  for (const { path, text } of pages()) {
    test(`${path}: the files exist`, () => {
      for (const [, file] of text.matchAll(/`((?:src|test|bench|examples|docs|tools)\/[\w./-]+)`/g)) {
        assert.ok(existsSync(join(ROOT, file as string)), `there is no ${file}`);
      }
    });

    test(`${path}: the quoted tests exist`, () => {
      for (const { file, names } of citations(text)) {
        const known = literals(readFileSync(join(ROOT, file), "utf8"));
        for (const name of names) assert.ok(known.has(name), `${file} has no test "${name}"`);
      }
    });

    test(`${path}: the links lead somewhere`, () => {
      for (const [, target = "", anchor] of text.matchAll(/\]\(([^)#]*)(?:#([^)]*))?\)/g)) {
        if (/^https?:/.test(target)) continue;
        const file = target === "" ? join(ROOT, path) : join(ROOT, dirname(path), target);
        assert.ok(existsSync(file), `there is no ${target}`);
        if (anchor !== undefined) assert.ok(anchors(file).has(anchor), `${target} has no section #${anchor}`);
      }
    });

    // A table of a generated page has a line for each row.
    test(`${path}: no line is longer than 120 columns`, { skip: isGenerated(text) }, () => {
      const long = text.split("\n").flatMap((line, i) => ([...line].length > 120 ? [i + 1] : []));
      assert.deepEqual(long, [], "these lines are");
    });
  }
});

/** Its headings, as links name them. */
function anchors(file: string): Set<string> {
  const headings = readFileSync(file, "utf8").matchAll(/^#+ (.*)$/gm);
  return new Set(
    [...headings].map(([, heading = ""]) =>
      heading
        .toLowerCase()
        .replaceAll(/[^\w\s-]/g, "")
        .replaceAll(" ", "-"),
    ),
  );
}

/** A file in backticks, a colon, then names in quotes. "…" in a name stands for what the test fills in. */
function citations(text: Page["text"]): { file: string; names: string[] }[] {
  const flat = text.replaceAll(/\s+/g, " ");
  return [...flat.matchAll(/`(test\/[^`]+\.ts)`((?::? ?(?:and |, |; )?"[^"]+")*)/g)].map(([, file, quoted]) => ({
    file: file as string,
    names: [...(quoted as string).matchAll(/"([^"]+)"/g)].map(([, name]) => name as string),
  }));
}

/** Every text in a file's code, as it would be quoted. */
function literals(code: string): Set<string> {
  const found = code.matchAll(/"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`/g);
  return new Set([...found].map(([, double, single, template]) => double ?? single ?? fill(template as string)));
}

function fill(template: string): string {
  return template.replaceAll(/\$\{[^}]*\}/g, "…");
}
