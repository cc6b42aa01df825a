import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmodSync, closeSync, linkSync, mkdirSync, openSync, renameSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { compareIds } from "../../src/core/text/ids.ts";
import type { SkippedFile } from "../../src/pipelines/sources/root.ts";
import { asNobody, SourceTree } from "./source-tree.ts";

const WINDOWS = process.platform === "win32";

describe("a listing", () => {
  test("a listing returns each matching file with its path and stat", async (t) => {
    const tree = new SourceTree(t, { "a.md": "1", "b/c.md": "four", "b/c.txt": "", ".d.md": "" });
    const found = await tree.list("**/*.md");
    assert.deepEqual(
      found.map(({ id }) => id),
      ["a.md", "b/c.md"],
    );
    const { path, stat } = found[1] as (typeof found)[0];
    const { mtimeNs, ctimeNs, ino } = statSync(path, { bigint: true });
    assert.equal(path, join(tree.root, "b", "c.md"));
    assert.deepEqual(stat, { size: 4, mtime: `${mtimeNs}`, ctime: `${ctimeNs}`, inode: `${ino}` });
  });

  test("a listing's root is the working directory, or what the source says", async (t) => {
    const tree = new SourceTree(t, { "docs/a": "", "docs/b/c": "" });
    assert.deepEqual(await tree.ids("**", { root: "docs" }), ["a", "b/c"]);
    assert.deepEqual(await tree.ids("**", { root: join(tree.root, "docs"), cwd: tree.base }), ["a", "b/c"]);
    assert.deepEqual(await tree.ids("b", { root: "docs" }), ["b/c"]);
  });

  test("a listing is ordered by the bytes of ids, across folders", async (t) => {
    const ids = [
      "a",
      "a b",
      "a-b",
      "a.md",
      "a0",
      "b/c",
      "b-c",
      "b.c",
      "b/d/e",
      "b/d-e",
      "b0",
      "ä",
      "\u{ffff}",
      "\u{10000}/a",
      "Z",
    ];
    const tree = new SourceTree(t, Object.fromEntries(ids.map((id) => [id, ""])));
    assert.deepEqual(await tree.ids(), ids.toSorted(compareIds));
  });

  test("a listing never contains Holdfast's own files, git's, or skipped ones", async (t) => {
    const tree = new SourceTree(t, {
      a: "",
      "b/.git/config": "",
      ".git": "",
      ".holdfast/work.db": "",
      "b/work.db": "",
      "b/store/ab/cd": "",
    });
    assert.deepEqual(
      await tree.ids(["**", "**/.git/**", ".git", ".holdfast/**"], { skip: [tree.path("b/work.db"), tree.path("b/store")] }),
      ["a"],
    );
    tree.link("../other", tree.root);
    const other = join(tree.base, "other");
    assert.deepEqual(
      await tree.ids("**", { cwd: other, skip: [join(other, "b/work.db")] }),
      ["a", "b/store/ab/cd"],
      "through a link",
    );
    assert.deepEqual(
      await tree.ids("**", { skip: [join(other, "b/store"), join(tree.base, "nowhere")] }),
      ["a", "b/work.db"],
      "of a link",
    );
  });

  test("a listing contains nothing that lies beside a database", async (t) => {
    const tree = new SourceTree(t);
    for (const end of ["", "-wal", "-shm", "-journal", "-alive/1.lock", "-notes"]) tree.write(`work.db${end}`);
    assert.deepEqual(await tree.ids("**", { skip: [tree.path("work.db")] }), ["work.db-notes"]);
  });

  for (const sign of ["-wal", "-shm", "-journal", "-alive/1.lock"]) {
    test(`a listing leaves out a database with a ${sign} beside it, and its companions, and reports it`, async (t) => {
      const tree = new SourceTree(t, { "a/notes": "", "a/notes-journal/monday": "", "a/x-wal": "" });
      for (const end of ["", sign, "-witness/1", "-artifacts/ab", "-notes"]) tree.write(`a/work.db${end}`);
      tree.link("link", "a/work.db");
      const skipped: SkippedFile[] = [];
      const ids = await tree.ids("**", { onSkipped: (file) => skipped.push(file) });
      assert.deepEqual(ids, ["a/notes", "a/notes-journal/monday", "a/work.db-notes", "a/x-wal"]);
      const name = sign.split("/")[0];
      assert.deepEqual(skipped, [
        { id: "a/work.db", reason: `it is a database, since work.db${name} is beside it` },
        { id: "link", reason: "it leads to a database" },
      ]);
    });
  }

  test("a listing leaves out a database that this process has open under any name, and lists other open files", async (t) => {
    const tree = new SourceTree(t, { read: "", written: "" });
    // A rollback journal is beside its database only during a transaction.
    using db = new DatabaseSync(tree.path("plain.db"));
    db.exec("create table t (x)");
    linkSync(tree.path("plain.db"), tree.path("hard"));
    tree.link("link", "plain.db");
    const fds = [openSync(tree.path("read"), "r"), openSync(tree.path("written"), "w")];
    t.after(() => fds.forEach((fd) => closeSync(fd)));
    const skipped: string[] = [];
    const ids = await tree.ids("**", { onSkipped: ({ id }) => skipped.push(id) });
    if (process.platform !== "linux") return;
    assert.deepEqual(ids, ["read", "written"]);
    assert.deepEqual(skipped, ["hard", "link", "plain.db"]);
  });

  test("a listing has names that begin with a dot only if the glob spells the dot, or with `dot: true`", async (t) => {
    const tree = new SourceTree(t, { "a/.env": "", "a/b": "", ".github/c": "" });
    assert.deepEqual(await tree.ids("**"), ["a/b"]);
    assert.deepEqual(await tree.ids([".github/**", "**"]), [".github/c", "a/b"]);
    assert.deepEqual(await tree.ids("**", { dot: true }), [".github/c", "a/.env", "a/b"]);
    assert.deepEqual(await tree.ids("**", { dot: true, ignore: ["**/.env"] }), [".github/c", "a/b"]);
  });

  test("a listing leaves out what `ignore` matches, hidden or not, with everything below it", async (t) => {
    const tree = new SourceTree(t, {
      "a/node_modules/b.md": "",
      "node_modules/c.md": "",
      "a/x.log": "",
      "a/.x.log": "",
      "a/y.md": "",
      "drafts/z.md": "",
    });
    assert.deepEqual(await tree.ids(["**", "a/.*"], { ignore: ["**/node_modules", "**/*.log", "drafts"] }), ["a/y.md"]);
  });

  test("a listing leaves out pipes and sockets", { skip: WINDOWS }, async (t) => {
    const tree = new SourceTree(t, { a: "" });
    execFileSync("mkfifo", [tree.path("pipe")]);
    const server = createServer().listen(tree.path("socket"));
    await new Promise((listening) => server.once("listening", listening));
    t.after(() => server.close());
    tree.link("to-pipe", "pipe");
    assert.deepEqual(await tree.ids(), ["a"]);
  });
});

describe("of links, a listing", () => {
  test("a listing follows links to files inside the root, and no others", async (t) => {
    const tree = new SourceTree(t, { "a/b": "inside", ".git/config": "", "skipped/x": "" });
    writeFileSync(join(tree.base, "secret"), "outside");
    mkdirSync(join(tree.base, "root-too"));
    writeFileSync(join(tree.base, "root-too", "x"), "beside, with a name that begins the same");
    tree.link("in", "a/b");
    tree.link("in-by-a-link", "in");
    tree.link("in-absolute", tree.path("a/b"));
    tree.link("out", "../secret");
    tree.link("out-absolute", join(tree.base, "secret"));
    tree.link("out-by-a-link", "out");
    tree.link("beside", "../root-too/x");
    tree.link("broken", "nothing");
    tree.link("git", ".git/config");
    tree.link("skip", "skipped/x");
    assert.deepEqual(await tree.ids("**", { skip: [tree.path("skipped")] }), ["a/b", "in", "in-absolute", "in-by-a-link"]);
  });

  test("a listing does not follow links to folders", async (t) => {
    const tree = new SourceTree(t, { "a/b": "" });
    tree.link("a/up", "..");
    tree.link("a/self", "self");
    tree.link("a/one", "two");
    tree.link("a/two", "one");
    tree.link("folder", "a");
    assert.deepEqual(await tree.ids(), ["a/b"]);
  });
});

describe("what cannot be seen is not taken for removed:", () => {
  test("a missing root is an error", async (t) => {
    const tree = new SourceTree(t, { file: "" });
    const missing = { code: "SOURCE_MISSING", hint: /root/ };
    await assert.rejects(tree.ids("**", { root: "nowhere" }), { ...missing, message: /nowhere, does not exist/ });
    await assert.rejects(tree.ids("**", { root: "file" }), { ...missing, message: /is not a folder/ });
    await assert.rejects(tree.ids("**", { root: "file/below" }), missing);
  });

  test("a root without any of the folders that the globs begin with is an error", async (t) => {
    const tree = new SourceTree(t, { "a/1": "", file: "" });
    tree.link("link", "a");
    const missing = { code: "SOURCE_MISSING", hint: /mounted/ };
    await assert.rejects(tree.ids("notes/**/*.md"), { ...missing, message: /source's glob, .*notes, does not exist/ });
    await assert.rejects(tree.ids("a/deep/er/*"), { ...missing, message: /er, does not exist/ });
    await assert.rejects(tree.ids("notes/one.md"), missing);
    await assert.rejects(tree.ids("file/*"), missing);
    await assert.rejects(tree.ids("link/*"), missing);
    await assert.rejects(tree.ids(["notes/*", "mails/*"]), { ...missing, message: /None of .*notes, .*mails\./ });
    await assert.rejects(tree.ids("notes/*", { after: "notes/1" }), missing);
  });

  test("if one of the globs' folders exists, others may be missing", async (t) => {
    const tree = new SourceTree(t, { "a/1": "" });
    assert.deepEqual(await tree.ids(["notes/**", "a/*"]), ["a/1"]);
    assert.deepEqual(await tree.ids(["notes/**", "*"]), []);
    assert.deepEqual(await tree.ids("a/*.md"), []);
    assert.deepEqual(await tree.ids("a/2"), []);
    assert.deepEqual(await tree.ids("2"), []);
  });

  test("a glob's folder that disappears while it is listed is an error", async (t) => {
    const tree = new SourceTree(t, { "a/1": "", "b/1": "", "b/2": "" });
    const seen: string[] = [];
    const list = async () => {
      for await (const { id } of tree.listing(["a/*", "b/*"])) {
        seen.push(id);
        if (id === "a/1") renameSync(tree.path("b"), tree.path("away"));
      }
    };
    await assert.rejects(list(), { code: "SOURCE_MISSING", message: /b, went away while it was listed/ });
    assert.deepEqual(seen, ["a/1"]);
  });

  for (const [what, act] of Object.entries({
    "is gone": (path: string) => rmSync(path, { recursive: true }),
    "was replaced": (path: string) => {
      renameSync(path, `${path}-old`);
      mkdirSync(path);
    },
  })) {
    test(`a root that ${what} while it is listed is an error`, async (t) => {
      const tree = new SourceTree(t, { "a/1": "", "b/1": "", "c/1": "" });
      const seen: string[] = [];
      const list = async () => {
        for await (const { id } of tree.listing()) {
          seen.push(id);
          if (seen.length === 1) act(tree.root);
        }
      };
      await assert.rejects(list(), { code: "SOURCE_MISSING" });
      assert.deepEqual(seen, ["a/1"]);
    });
  }

  test("an unreadable folder is an error that names it", { skip: WINDOWS }, async (t) => {
    const tree = new SourceTree(t, { "a/1": "", "b/1": "" });
    chmodSync(tree.path("b"), 0);
    await asNobody(tree, async () => {
      await assert.rejects(tree.ids(), { code: "SOURCE_UNREADABLE", message: /b cannot be read/, hint: /ignore/ });
      assert.deepEqual(await tree.ids("**", { ignore: ["b"] }), ["a/1"]);
      assert.deepEqual(await tree.ids("a/**"), ["a/1"]);
    });
    chmodSync(tree.path("b"), 0o755);
  });

  test("an unreadable ignore file is an error, because its rules are unknown", { skip: WINDOWS }, async (t) => {
    const tree = new SourceTree(t, { "a/.gitignore": "", "a/1": "" });
    chmodSync(tree.path("a/.gitignore"), 0);
    await asNobody(tree, () => assert.rejects(tree.ids(), { code: "SOURCE_UNREADABLE", message: /\.gitignore cannot be read/ }));
  });

  test("a name that is not UTF-8 is an error, unless it is ignored", { skip: process.platform !== "linux" }, async (t) => {
    const tree = new SourceTree(t, { a: "", "odd \u{fffd}": "" });
    assert.deepEqual(await tree.ids(), ["a", "odd \u{fffd}"], "a character like any other");
    writeFileSync(Buffer.concat([Buffer.from(`${tree.root}/b`), Buffer.from([0xff])]), "");
    await assert.rejects(tree.ids(), { code: "SOURCE_NAME_INVALID", message: /UTF-8/, hint: /ignore/ });
    assert.deepEqual(await tree.ids("a"), ["a"]);
    assert.deepEqual(await tree.ids("**", { ignore: ["b*"] }), ["a", "odd \u{fffd}"]);
  });

  test("a path that is too long for an id is an error", { skip: WINDOWS }, async (t) => {
    const tree = new SourceTree(t, { [`${"ä".repeat(100)}/`.repeat(10) + "x".repeat(10)]: "", a: "" });
    await assert.rejects(tree.ids(), { code: "SOURCE_NAME_INVALID", message: /2000 bytes/ });
  });
});

test("files and folders that vanish while they are listed are left out", async (t) => {
  const tree = new SourceTree(t, { "a/1": "", "a/2": "", "a/3": "", "b/1": "", "c/1": "" });
  const seen: string[] = [];
  for await (const { id } of tree.listing()) {
    seen.push(id);
    if (id !== "a/1") continue;
    rmSync(tree.path("a/2"));
    rmSync(tree.path("a/3"));
    mkdirSync(tree.path("a/3"));
    rmSync(tree.path("b"), { recursive: true });
  }
  assert.deepEqual(seen, ["a/1", "c/1"]);
});

describe("a listing that continues after an id", () => {
  const IDS = ["a", "a-b", "a/b/c", "a/b/d", "a/b-", "a/c", "b", "c/d/e", "c/f", "c0", "d"];

  test("a continued listing has exactly the rest, also if the last file is gone or became a folder", async (t) => {
    const contents = Object.fromEntries(IDS.filter((id) => id !== "a").map((id) => [id, ""]));
    const tree = new SourceTree(t, contents);
    const all = await tree.ids();
    for (const id of all) assert.deepEqual(await tree.ids("**", { after: id }), all.slice(all.indexOf(id) + 1), id);
    rmSync(tree.path("c/d"), { recursive: true });
    assert.deepEqual(await tree.ids("**", { after: "c/d/e" }), ["c/f", "c0", "d"]);
    rmSync(tree.path("b"));
    tree.write("b/x");
    assert.deepEqual(await tree.ids("**", { after: "b" }), ["b/x", "c/f", "c0", "d"]);
    rmSync(tree.path("c"), { recursive: true });
    tree.write("c");
    assert.deepEqual(await tree.ids("**", { after: "c/f" }), ["c0", "d"]);
    assert.deepEqual(await tree.ids("**", { after: "\u{10ffff}" }), []);
  });

  test("a continued listing has what the whole listing has after that id, whatever the names", async (t) => {
    const name = fc.string({
      unit: fc.constantFrom("a", "b", "-", ".", "0", " ", "\u{e000}", "\u{10000}"),
      minLength: 1,
      maxLength: 3,
    });
    const id = fc
      .array(
        name.filter((one) => !one.startsWith(".")),
        { minLength: 1, maxLength: 3 },
      )
      .map((names) => names.join("/"));
    await fc.assert(
      fc.asyncProperty(fc.uniqueArray(id, { maxLength: 12 }), id, async (ids, after) => {
        const tree = new SourceTree(t);
        const kept = ids.filter((one) => !ids.some((other) => other.startsWith(`${one}/`)));
        for (const one of kept) tree.write(one);
        const all = await tree.ids("**");
        assert.deepEqual(all, kept.toSorted(compareIds));
        for (const at of [after, ...all]) {
          const rest = await tree.ids("**", { after: at });
          assert.deepEqual(
            rest,
            all.filter((one) => compareIds(one, at) > 0),
          );
        }
        rmSync(tree.base, { recursive: true });
      }),
      { numRuns: 60 },
    );
  });
});
