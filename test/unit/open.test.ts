import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative, resolve } from "node:path";
import { after, describe, test } from "node:test";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { connect, type DriverName } from "../../src/store/sqlite/driver.ts";
import { explain, faultOf } from "../../src/store/sqlite/faults.ts";
import { schemaVersion } from "../../src/store/sqlite/migrate.ts";
import { canonicalPath, openSqlite, type OpenSqliteOptions, refuseOldSqlite } from "../../src/store/sqlite/open.ts";

const NOW = Date.UTC(2026, 0, 1);
const root = mkdtempSync(join(tmpdir(), "holdfast-open-"));
after(() => rmSync(root, { recursive: true }));
let made = 0;

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(driver, () => {
    test("a new file is created with its settings", async () => {
      const path = join(freshFolder(), "work.db");
      const { db, durability, databaseId } = await open(path, { driver });
      assert.equal(durability, "power");
      assert.match(databaseId, /^[0-9a-f-]{36}$/);
      assert.deepEqual(db.prepare("pragma journal_mode").row(), ["wal"]);
      assert.deepEqual(db.prepare("pragma synchronous").row(), [2]);
      assert.deepEqual(db.prepare("select max(version) from holdfast_migrations").row(), [schemaVersion()]);
      db.close();
      const again = await open(path, { driver, durability: "power" });
      assert.equal(again.databaseId, databaseId);
      assert.deepEqual(again.db.prepare("pragma synchronous").row(), [2]);
      again.db.close();
    });

    test('"process" is kept, and is what the next one gets who asks for nothing', async () => {
      const path = join(freshFolder(), "work.db");
      (await open(path, { driver, durability: "process" })).db.close();
      const { db, durability } = await open(path, { driver });
      assert.equal(durability, "process");
      assert.deepEqual(db.prepare("pragma synchronous").row(), [1]);
      db.close();
    });

    test("the database may be the user's own, and its tables stay unchanged", async () => {
      const path = join(freshFolder(), "app.db");
      const own = connect(driver, path, { busyTimeout: 0 });
      own.exec("create table users (name text); insert into users values ('ada')");
      own.close();
      const { db } = await open(path, { driver });
      assert.deepEqual(db.prepare("select name from users").rows(), [["ada"]]);
      db.close();
    });

    test("two concurrent opens of a new file get the same database", async () => {
      const path = join(freshFolder(), "work.db");
      const both = await Promise.all([open(path, { driver }), open(path, { driver })]);
      assert.equal(both[0].databaseId, both[1].databaseId);
      for (const { db } of both) db.close();
    });

    test("a missing folder is named, and not created", async () => {
      const folder = freshFolder();
      await refused(folder, "FOLDER_MISSING", () => open(join(folder, "no", "work.db"), { driver }));
    });

    test("a folder is not a database", async () => {
      const folder = freshFolder();
      mkdirSync(join(folder, "work.db"));
      await refused(folder, "NOT_A_DATABASE", () => open(join(folder, "work.db"), { driver }));
    });

    for (const [what, bytes] of [
      ["a text", Buffer.from("dear diary, ".repeat(500))],
      ["a short text", Buffer.from("hello")],
      ["zeros", Buffer.alloc(8_192)],
    ] as const) {
      test(`${what} is not a database`, async () => {
        const folder = freshFolder();
        writeFileSync(join(folder, "work.db"), bytes);
        await refused(folder, "NOT_A_DATABASE", () => open(join(folder, "work.db"), { driver }));
      });
    }

    test("a database of a newer Holdfast is left unchanged", async () => {
      const folder = freshFolder();
      const path = join(folder, "work.db");
      const { db } = await open(path, { driver });
      db.prepare("insert into holdfast_migrations (version, name, applied_at) values (?, 'future', 0)").run(schemaVersion() + 1);
      db.close();
      await refused(folder, "SCHEMA_NEWER", () => open(path, { driver }), new RegExp(`schema ${schemaVersion() + 1}`));
    });

    test("a durability other than the database's is rejected, both ways", async () => {
      for (const [has, wanted] of [
        ["power", "process"],
        ["process", "power"],
      ] as const) {
        const folder = freshFolder();
        const path = join(folder, "work.db");
        (await open(path, { driver, durability: has })).db.close();
        await refused(folder, "DURABILITY_DIFFERS", () => open(path, { driver, durability: wanted }));
      }
    });

    // root may write anywhere, so another user has to try.
    const skip =
      process.getuid?.() !== 0
        ? "needs root, to become a user who may not write"
        : !isPublic(import.meta.dirname) && "another user may not read these sources";
    for (const [what, protect, codes] of [
      ["a file that may not be written", (folder: string) => chmodSync(join(folder, "work.db"), 0o444), ["READ_ONLY"]],
      ["a folder that may not be written", (folder: string) => chmodSync(folder, 0o555), ["READ_ONLY", "CANNOT_OPEN"]],
      ["a file that may not be read", (folder: string) => chmodSync(join(folder, "work.db"), 0o000), ["CANNOT_OPEN"]],
    ] as const) {
      for (const kind of ["a Holdfast database", "a database that is not in WAL mode", "a new file"] as const) {
        if (kind === "a new file" && what !== "a folder that may not be written") continue;
        test(`${what} is reported (${kind})`, { skip }, async () => {
          const folder = freshFolder();
          const path = join(folder, "work.db");
          if (kind === "a Holdfast database") (await open(path, { driver })).db.close();
          if (kind === "a database that is not in WAL mode") {
            const own = connect(driver, path, { busyTimeout: 0 });
            own.exec("create table users (name text)");
            own.close();
          }
          chmodSync(folder, 0o777);
          for (const file of readdirSync(folder)) chownSync(join(folder, file), 65_534, 65_534);
          chownSync(folder, 65_534, 65_534);
          protect(folder);
          const before = snapshot(folder);
          const said = openAsNobody(path, driver);
          assert.ok((codes as readonly string[]).includes(said.code), JSON.stringify(said));
          assert.notEqual(said.hint, "");
          assert.ok(said.message.includes(path));
          assert.deepEqual(snapshot(folder), before);
        });
      }
    }
  });
}

/** Whether every user may read what is in it. */
function isPublic(folder: string): boolean {
  const up = dirname(folder);
  return (statSync(folder).mode & 0o005) === 0o005 && (up === folder || isPublic(up));
}

test("a SQLite version with a known data loss bug is rejected", () => {
  for (const version of ["3.51.2", "3.51.0", "3.51", "3.50.9", "3.7.17", "2.99.99"]) {
    assert.throws(
      () => refuseOldSqlite(version, "node:sqlite"),
      (error) =>
        error instanceof HoldfastError && error.code === "SQLITE_TOO_OLD" && error.message.includes(version) && error.hint !== "",
      version,
    );
  }
  for (const version of ["3.51.3", "3.51.10", "3.52.0", "3.100.0", "4.0.0"]) refuseOldSqlite(version, "node:sqlite");
});

test("a file has one name, however its path is spelled", () => {
  const folder = freshFolder();
  const path = join(folder, "work.db");
  const canonical = canonicalPath(path);
  assert.equal(canonicalPath(join(folder, "x", "..", "work.db")), canonical);
  assert.equal(canonicalPath(relative(process.cwd(), path)), canonical);
  symlinkSync(folder, `${folder}-link`);
  assert.equal(canonicalPath(join(`${folder}-link`, "work.db")), canonical);
  writeFileSync(path, "");
  symlinkSync(path, join(folder, "link.db"));
  assert.equal(canonicalPath(join(folder, "link.db")), canonical);
  assert.equal(canonicalPath(":memory:"), ":memory:");
});

test("every kind of SQLite error is explained with a hint, for both drivers", () => {
  const codes = {
    5: "BUSY",
    6: "BUSY",
    8: "READ_ONLY",
    10: "DISK_ERROR",
    11: "DAMAGED",
    13: "DISK_FULL",
    14: "CANNOT_OPEN",
    26: "NOT_A_DATABASE",
    19: "VALUE_INVALID",
    18: "VALUE_INVALID",
    20: "VALUE_INVALID",
    7: "STORE_ERROR",
  };
  const names = {
    5: "BUSY",
    6: "LOCKED",
    8: "READONLY",
    10: "IOERR_WRITE",
    11: "CORRUPT",
    13: "FULL",
    14: "CANTOPEN",
    26: "NOTADB",
    19: "CONSTRAINT_UNIQUE",
    18: "TOOBIG",
    20: "MISMATCH",
    7: "NOMEM",
  };
  for (const [number, code] of Object.entries(codes)) {
    const ofNode = Object.assign(new Error("said"), { code: "ERR_SQLITE_ERROR", errcode: Number(number) | (3 << 8) });
    const ofBetter = Object.assign(new Error("said"), { code: `SQLITE_${names[Number(number) as keyof typeof names]}` });
    for (const error of [ofNode, ofBetter]) {
      const explained = explain(error, "/data/work.db");
      assert.ok(explained instanceof HoldfastError);
      assert.equal(explained.code, code);
      assert.notEqual(explained.hint, "");
      assert.equal(explained.cause, error);
    }
  }
});

test("errors that are not SQLite's pass unchanged", () => {
  const own = new HoldfastError("X", "x", "do y");
  for (const error of [new TypeError("no"), own, "text", undefined]) {
    assert.equal(faultOf(error), null);
    assert.equal(explain(error, "p"), error);
  }
});

test("file system errors beside the database are explained, too", () => {
  for (const [code, expected] of [
    ["EEXIST", "CANNOT_OPEN"],
    ["EACCES", "CANNOT_OPEN"],
    ["ENOSPC", "DISK_FULL"],
    ["EROFS", "READ_ONLY"],
  ]) {
    const told = explain(Object.assign(new Error("no"), { code }), "p");
    assert.ok(told instanceof HoldfastError);
    assert.equal(told.code, expected);
  }
});

test("a link to a missing file is resolved to the file", () => {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), "holdfast-link-")));
  try {
    mkdirSync(join(folder, "real"));
    symlinkSync(join("real", "work.db"), join(folder, "link.db"));
    assert.equal(canonicalPath(join(folder, "link.db")), join(folder, "real", "work.db"));
  } finally {
    rmSync(folder, { recursive: true });
  }
});

/** As an application opens: first the file's one name, then the file. */
async function open(path: string, options: Partial<OpenSqliteOptions> & { driver: DriverName }) {
  return openSqlite(canonicalPath(path), { now: () => NOW, busyTimeout: 20, ...options });
}

async function refused(folder: string, code: string, act: () => Promise<unknown>, says = /./): Promise<void> {
  const before = snapshot(folder);
  await assert.rejects(act, (error) => {
    assert.ok(error instanceof HoldfastError, String(error));
    assert.equal(error.code, code);
    assert.match(error.message, says);
    assert.ok(error.message.includes(folder), "it names the path");
    assert.notEqual(error.hint, "");
    return true;
  });
  assert.deepEqual(snapshot(folder), before, "nothing has changed on the disk");
}

/** Every file below, with its bytes. */
function snapshot(folder: string): Record<string, string> {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).map((entry): [string, string] => {
    const path = join(entry.parentPath, entry.name);
    return [relative(folder, path), entry.isFile() ? readFileSync(path).toString("base64") : "folder"];
  });
  return Object.fromEntries(files.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function freshFolder(): string {
  chmodSync(root, 0o755);
  const folder = join(root, String(++made));
  mkdirSync(folder);
  return folder;
}

/** In a process of a user who may do nothing that is not allowed; what it was told. */
function openAsNobody(path: string, driver: DriverName): { code: string; message: string; hint: string } {
  const open = resolve(import.meta.dirname, "../../src/store/sqlite/open.ts");
  const program = `
    const { openSqlite, canonicalPath } = await import(${JSON.stringify(open)});
    try {
      await openSqlite(canonicalPath(${JSON.stringify(path)}), { driver: ${JSON.stringify(driver)}, now: () => 0, busyTimeout: 0 });
      console.log(JSON.stringify({ code: "OPENED", message: "", hint: "" }));
    } catch (error) {
      console.log(JSON.stringify({ code: error.code ?? "none", message: error.message, hint: error.hint ?? "" }));
    }`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", program], {
    uid: 65_534,
    gid: 65_534,
    cwd: root,
    encoding: "utf8",
  });
  assert.ok(stdout !== "", stderr);
  return JSON.parse(stdout) as { code: string; message: string; hint: string };
}
