import assert from "node:assert/strict";
import { test } from "node:test";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { locate } from "../../src/store/open-store.ts";
import { checkSchema, isAddress, parseAddress } from "../../src/store/postgres/connection/address.ts";

const NOTHING = {
  user: undefined,
  password: undefined,
  database: undefined,
  ssl: false,
  writable: false,
  pooled: false,
  within: 10_000,
  settings: {},
};

/** Whatever is in this machine's environment. */
function parse(given: string) {
  return parseAddress(given, {});
}

test("an address has host, user and settings, and is printed without its user and password", () => {
  const address = parse(
    "postgres://anna:s3%3Acret:@db.example:5433/my%20shop?sslmode=require&connect_timeout=2&statement_timeout=5000",
  );
  assert.deepEqual(address, {
    name: "db.example:5433/my%20shop",
    hosts: [{ host: "db.example", port: 5433 }],
    user: "anna",
    password: "s3:cret:",
    database: "my shop",
    ssl: "require",
    writable: false,
    pooled: false,
    within: 2_000,
    settings: { statement_timeout: "5000" },
  });
  assert.deepEqual(parse("postgresql://localhost"), {
    ...NOTHING,
    name: "localhost",
    hosts: [{ host: "localhost", port: 5432 }],
  });
  assert.equal(parse("postgres://a:p%40ss%2Fword@h/d").name, "h/d");
  assert.equal(parse("postgres://a:b@[::1]:5432/d").name, "[::1]:5432/d");
  assert.deepEqual(parse("postgres://a:b@[::1]/d").hosts, [{ host: "::1", port: 5432 }]);
});

test("parts missing from an address come from the environment, as for every PostgreSQL client", () => {
  const env = { PGHOST: "db.example", PGPORT: "5433", PGDATABASE: "shop" };
  const { hosts, database } = parseAddress("postgres://", env);
  assert.deepEqual([hosts, database], [[{ host: "db.example", port: 5433 }], "shop"]);
  assert.deepEqual(parseAddress("postgres://other:1/d", env).hosts, [{ host: "other", port: 1 }]);
});

const ssl = (given: string, mode: string) => parseAddress(given, { PGSSLMODE: mode }).ssl;

test("PGSSLMODE applies if the address says nothing, and an unknown value is rejected", () => {
  assert.equal(ssl("postgres://h/d", "verify-full"), "verify-full");
  assert.equal(ssl("postgres://h/d", "require"), "require");
  assert.equal(ssl("postgres://h/d", ""), false);
  assert.equal(ssl("postgres://h/d?sslmode=disable", "require"), false);
  assert.throws(() => ssl("postgres://h/d", "sometimes"), { code: "ADDRESS_INVALID" });
});

test("user and password may be in the query, and are not passed to the server as settings", () => {
  const { user, password, settings, name } = parse("postgres://h/d?user=anna&password=s%20cret&work_mem=8MB");
  assert.deepEqual([user, password, settings, name], ["anna", "s cret", { work_mem: "8MB" }, "h/d"]);
  for (const given of ["postgres://anna@h/d?user=berta", "postgres://anna:x@h/d?password=y"])
    assert.throws(() => parse(given), { code: "ADDRESS_INVALID", message: /is given twice/ });
});

test("a socket is named by its folder", () => {
  assert.deepEqual(parse("postgres://anna:x@/shop?host=/run/postgresql"), {
    ...NOTHING,
    name: "/run/postgresql/shop",
    hosts: [{ path: "/run/postgresql/.s.PGSQL.5432" }],
    user: "anna",
    password: "x",
    database: "shop",
  });
  assert.deepEqual(parse("postgres://%2Ftmp/d?port=5433").hosts, [{ path: "/tmp/.s.PGSQL.5433" }]);
});

test("several hosts are one address", () => {
  const { hosts, name, writable } = parse("postgres://u:p@a:1,b:2/d?target_session_attrs=read-write");
  assert.equal(name, "a:1,b:2/d");
  assert.ok(writable);
  assert.deepEqual(hosts, [
    { host: "a", port: 1 },
    { host: "b", port: 2 },
  ]);
});

test("an invalid address is rejected without printing it, because it may contain a password", () => {
  for (const given of [
    "postgres:h/d",
    "postgres://h:port/d",
    "postgres://u:p/w@h/d",
    "postgres://u:p#w@h/d",
    "postgres://h:0/d",
    "postgres://h:65536/d",
    "postgres://u:%zz@h/d",
    "postgres://h/d?pooler=session",
    "postgres://h/d?sslmode=sometimes",
    "postgres://h/d?target_session_attrs=standby",
    "postgres://h/d?connect_timeout=soon",
    "postgres://h/d?sslrootcert=/etc/ca.pem",
  ]) {
    assert.throws(
      () => parse(given),
      (error) =>
        error instanceof HoldfastError && error.code === "ADDRESS_INVALID" && !error.message.includes(given) && error.hint !== "",
      given,
    );
  }
});

test("a path is not an address, whatever its name", () => {
  for (const path of ["work.db", "/postgres/work.db", "./postgres:", "my-postgres://x", ":memory:"])
    assert.equal(isAddress(path), false, path);
  assert.ok(isAddress("postgres://h") && isAddress("postgresql://h"));
});

test("a schema is a plain name that only Holdfast uses", () => {
  for (const good of ["holdfast", "_a", "tenant_7", "a".repeat(40)]) assert.equal(checkSchema(good), good);
  for (const bad of [
    "",
    "Shop",
    "7a",
    "a-b",
    'a"b',
    "a b",
    "ä",
    "a".repeat(41),
    "public",
    "pg_x",
    "information_schema",
    7,
    null,
  ]) {
    assert.throws(
      () => checkSchema(bad),
      (error) => error instanceof HoldfastError && error.code === "OPTION_INVALID",
      String(bad),
    );
  }
});

test("the same address and schema are the same database, and others are not", () => {
  const { key } = locate("postgres://h/d", {});
  assert.equal(locate("postgres://h/d", { schema: "holdfast" }).key, key);
  assert.notEqual(locate("postgres://h/d", { schema: "other" }).key, key);
  assert.notEqual(locate("postgres://h/e", {}).key, key);
  assert.equal(locate("postgres://u:secret@h/d", { schema: "other" }).name, "postgres://h/d (other)");
  assert.equal(locate(":memory:", {}).key, null);
});

test("an unencoded password is neither misread nor printed", () => {
  for (const bad of [
    "postgres://app:1/2SECRET@127.0.0.1/shop",
    "postgres://app:p@ss/SECRET@127.0.0.1:1/shop",
    "postgres://app:12?SECRET@127.0.0.1/shop",
  ]) {
    assert.throws(
      () => parseAddress(bad, {}),
      (error) => error instanceof HoldfastError && error.code === "ADDRESS_INVALID" && !/SECRET|app/.test(error.message),
      bad,
    );
  }
});

test("an address of another kind of database is not used as a path, and is not printed", () => {
  for (const bad of ["mysql://app:SECRET@localhost/shop", "redis://h", "sqlite://work.db", "https://h/d"]) {
    assert.throws(
      () => locate(bad, {}),
      (error) => error instanceof HoldfastError && error.code === "ADDRESS_INVALID" && !error.message.includes("SECRET"),
      bad,
    );
  }
  assert.equal(locate("path.db", {}).kind, "sqlite");
});
