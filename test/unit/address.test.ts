import assert from "node:assert/strict";
import { test } from "node:test";
import { HoldfastError } from "../../src/core/errors.ts";
import { locate } from "../../src/store/open-store.ts";
import { checkSchema, isAddress, parseAddress } from "../../src/store/postgres/address.ts";

test("an address is taken as it is given, and shown without its user and password", () => {
  const address = parseAddress("postgres://anna:s3cret@db.example:5433/shop?sslmode=require");
  assert.deepEqual(address, {
    url: "postgres://anna:s3cret@db.example:5433/shop?sslmode=require",
    name: "db.example:5433/shop",
    pooled: false,
  });
  assert.equal(parseAddress("postgresql://localhost").name, "localhost");
  assert.equal(parseAddress("postgres://a:p%40ss%2Fword@h/d").name, "h/d");
  assert.equal(parseAddress("postgres://a:b@[::1]:5432/d").name, "[::1]:5432/d");
});

test("what is ours in it does not reach the driver", () => {
  assert.deepEqual(parseAddress("postgres://h/d?pooler=transaction&sslmode=require"), {
    url: "postgres://h/d?sslmode=require",
    name: "h/d",
    pooled: true,
  });
  assert.deepEqual(parseAddress("postgres://anna:x@/shop?host=/run/postgresql"), {
    url: "postgres://anna:x@localhost/shop",
    socket: "/run/postgresql",
    name: "/run/postgresql/shop",
    pooled: false,
  });
});

test("several hosts are one address", () => {
  const { url, name } = parseAddress("postgres://u:p@a:1,b:2/d?target_session_attrs=read-write");
  assert.deepEqual([url, name], ["postgres://u:p@a:1,b:2/d?target_session_attrs=read-write", "a:1,b:2/d"]);
});

test("what is no address is refused, and not repeated: there may be a password in it", () => {
  for (const given of [
    "postgres:h/d",
    "postgres://h:port/d",
    "postgres://u:p/w@h/d",
    "postgres://u:p#w@h/d",
    "postgres://h/d?pooler=session",
  ]) {
    assert.throws(
      () => parseAddress(given),
      (error) =>
        error instanceof HoldfastError && error.code === "ADDRESS_INVALID" && !error.message.includes(given) && error.hint !== "",
      given,
    );
  }
});

test("a path is no address, whatever it is called", () => {
  for (const path of ["work.db", "/postgres/work.db", "./postgres:", "my-postgres://x", ":memory:"])
    assert.equal(isAddress(path), false, path);
  assert.ok(isAddress("postgres://h") && isAddress("postgresql://h"));
});

test("a schema is a plain name, and Holdfast's alone", () => {
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

test("the same address and schema are the same database, others are not", () => {
  const { key } = locate("postgres://h/d", {});
  assert.equal(locate("postgres://h/d", { schema: "holdfast" }).key, key);
  assert.notEqual(locate("postgres://h/d", { schema: "other" }).key, key);
  assert.notEqual(locate("postgres://h/e", {}).key, key);
  assert.equal(locate("postgres://u:secret@h/d", { schema: "other" }).name, "postgres://h/d (other)");
  assert.equal(locate(":memory:", {}).key, null);
});
