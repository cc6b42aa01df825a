import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { fileGlobs, ignoreGlobs, leadingFolders, matchGlob } from "../../src/core/text/glob.ts";
import { pipeline } from "../../src/core/pipelines/pipeline.ts";
import { files } from "../../src/core/pipelines/source.ts";

const FILE_CASES: [string, { yes: string[]; no: string[] }][] = [
  [
    "docs/**/*.md",
    { yes: ["docs/a.md", "docs/b/c/a.md"], no: ["a.md", "docs/a.mdx", "src/docs/a.md", "docs/.a.md", "docs/.b/a.md"] },
  ],
  ["*.md", { yes: ["a.md", "ä.md", "a\nb.md", "😀.md"], no: [".md", ".a.md", "b/a.md", "A.MD"] }],
  ["**", { yes: ["a", "a/b", "a\nb/c"], no: [".a", "a/.b", ".a/b"] }],
  ["./docs//*.md", { yes: ["docs/a.md"], no: ["docs/b/a.md"] }],
  ["docs", { yes: ["docs", "docs/a.md", "docs/b/c"], no: ["docs.md", "a/docs/b", "docs/.a"] }],
  ["docs/", { yes: ["docs/a.md", "docs/b/c"], no: ["a/docs/b"] }],
  [".", { yes: ["a", "a/b"], no: [".a"] }],
  [".github/**/*.yml", { yes: [".github/a.yml", ".github/b/a.yml"], no: [".github/.b/a.yml"] }],
  ["**/.env", { yes: [".env", "a/.env"], no: ["env"] }],
  ["{a,.b}/*.{md,txt}", { yes: ["a/x.md", ".b/x.txt"], no: ["c/x.md", "a/x.rst"] }],
  ["a/@(b|c)/?.md", { yes: ["a/b/x.md", "a/c/y.md"], no: ["a/d/x.md", "a/b/xy.md"] }],
  ["!(a)/b", { yes: ["x/b"], no: ["a/b"] }],
  ["app/\\[id\\]/*.ts", { yes: ["app/[id]/page.ts"], no: ["app/i/page.ts"] }],
  ["[ab].md", { yes: ["a.md", "b.md", "[ab].md"], no: ["c.md"] }],
];

describe("a glob of files()", () => {
  for (const [glob, { yes, no }] of FILE_CASES) {
    test(`${JSON.stringify(glob)} matches what it should`, () => {
      const compiled = fileGlobs([glob]);
      for (const id of yes) assert.ok(compiled.matches(id), id);
      for (const id of no) assert.ok(!compiled.matches(id), id);
    });
  }

  test("a file matches if one of several globs matches", () => {
    const compiled = fileGlobs(["a/*.md", "b/*.txt"]);
    assert.deepEqual(["a/x.md", "b/x.txt", "b/x.md"].map(compiled.matches), [true, true, false]);
    assert.deepEqual(["a", "b", "c"].map(compiled.mayMatchBelow), [true, true, false]);
  });

  for (const glob of [
    "/etc/*",
    "../a",
    "a/../../b",
    "{a,../b}/*",
    "C:\\a\\*",
    "c:/a",
    "\\\\host\\a",
    "!a/**",
    "a/(b",
    "a/[b",
    " ",
    "a\0",
  ]) {
    test(`${JSON.stringify(glob)} is rejected`, () => {
      const expected = { name: "HoldfastError", code: /SOURCE_INVALID|TEXT_INVALID/, hint: /\w/ };
      assert.throws(() => files(glob), expected);
      assert.throws(() => files("a", { ignore: [glob] }), expected);
    });
  }

  test("two dots inside a name are accepted", () => {
    assert.ok(fileGlobs(["a..b/{1..3}.md"]).matches("a..b/2.md"));
  });

  test("a glob lists the folders that need no visit", () => {
    assert.deepEqual(below("docs/*.md"), ["docs"]);
    assert.deepEqual(below("docs/**"), ["docs", "docs/old"]);
    assert.deepEqual(below("docs"), ["docs", "docs/old"]);
    assert.deepEqual(below("*/*/*.md"), ["docs", "docs/old", "src"]);
    assert.deepEqual(below("*.md"), []);
    assert.deepEqual(below("**/*.md"), ["docs", "docs/old", "src"]);
    assert.deepEqual(below("**/*.{md,txt}"), ["docs", "docs/old", "src"]);
    assert.deepEqual(below("**/.git/*"), ["docs", "docs/old", "docs/.git", "src", ".cache"]);
  });

  test("no folder with a match is skipped", () => {
    const name = fc.oneof(
      fc.constantFrom("a", "b", ".a", "ab", "a.b", "..."),
      fc.string({ unit: fc.constantFrom("a", ".", "b") }),
    );
    const id = fc.array(
      name.filter((part) => !["", ".", ".."].includes(part)),
      { minLength: 1, maxLength: 4 },
    );
    const part = fc.constantFrom(
      "a",
      "b",
      ".a",
      "*",
      "?",
      "**",
      "*b",
      "a*",
      ".*",
      "[.a]*",
      "{a,.a}",
      "*{a,b}",
      "{a,b}",
      "{a,b/.a}",
      "{a/b,.a/b}",
      "@(a|.a)",
      "!(b)",
      "+(a)",
      "\\.a",
      "a**",
      "**b",
      "{.a,b}*",
    );
    const glob = fc.array(part, { minLength: 1, maxLength: 4 }).map((parts) => parts.join("/"));
    let matched = 0;
    for (const compile of [fileGlobs, ignoreGlobs, (globs: string[]) => matchGlob(globs[0] as string, "stage")]) {
      fc.assert(
        fc.property(glob, id, (glob, names) => {
          const compiled = compile([glob]);
          if (!compiled.matches(names.join("/"))) return;
          matched++;
          for (let i = 1; i < names.length; i++) assert.ok(compiled.mayMatchBelow(names.slice(0, i).join("/")));
        }),
        { numRuns: 3_000 },
      );
    }
    assert.ok(matched > 100, `${matched} matched`);
  });
});

test("ignore patterns include hidden names", () => {
  const compiled = ignoreGlobs(["**/node_modules", "*.log", "drafts/**"]);
  for (const id of ["node_modules", "a/node_modules", ".log", ".a.log", "drafts/.a"]) assert.ok(compiled.matches(id), id);
});

describe("a stage's match", () => {
  test("a stage's match includes hidden names, and works for ids that are not paths", () => {
    assert.ok(matchGlob("**/*.md", 'stage "a"').matches(".github/a.md"));
    assert.ok(matchGlob("https://example.org/**", 'stage "a"').matches("https://example.org/a/b"));
    assert.ok(matchGlob("/a/*", 'stage "a"').matches("/a/b"));
    assert.ok(!matchGlob("*.md", 'stage "a"').matches("a/b.md"));
  });

  for (const match of ["!a", "a/(b"]) {
    test(`${JSON.stringify(match)} is rejected when the pipeline is defined`, () => {
      assert.throws(() => reading(match), { code: "OPTION_INVALID", message: /`match` of stage "read"/, hint: /\w/ });
    });
  }
});

/** Those of some folders that have to be looked into. */
function below(glob: string): string[] {
  return ["docs", "docs/old", "docs/.git", "src", ".cache"].filter(fileGlobs([glob]).mayMatchBelow);
}

function reading(match: string): unknown {
  return pipeline("p")
    .source(files("a"))
    .stage("read", { match }, () => 1);
}

test("a glob's base is the folder before its first wildcard, or that of the file it spells", () => {
  const cases: Record<string, string> = {
    "notes/**/*.md": "notes",
    "./notes//2026/*.md": "notes/2026",
    "notes/": "notes",
    "notes/a.md": "notes",
    "a/b?/c": "a",
    "a/{b,c}/d": "a",
    "a/\\[b]/c": "a",
    notes: "",
    "*.md": "",
    "**": "",
    ".": "",
  };
  for (const [glob, folder] of Object.entries(cases)) assert.deepEqual(leadingFolders([glob]), [folder], glob);
  assert.deepEqual(leadingFolders(["a/*", "b/*", "a/**"]), ["a", "b"]);
});
