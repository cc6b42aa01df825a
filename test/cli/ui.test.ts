import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open } from "../../src/index.ts";
import { Place } from "./holdfast.ts";

let place: Place;
before(async () => {
  place = await Place.make();
  await (await open(place.db)).close();
});
after(() => place.remove());

test("ui serves dashboard and API on loopback until a signal, with a token of its own", async () => {
  const ui = place.start(["ui", "--port", "0"]);
  await ui.said("Ctrl-C ends it.");
  const [, login = "", token = ""] = /Dashboard +(\S+)\nAPI .*\nToken +(\S+)\n/.exec(ui.stdout) ?? [];
  assert.match(login, /^http:\/\/127\.0\.0\.1:\d+\/\?code=[\w-]{32}$/);
  assert.ok(!login.includes(token));
  const api = new URL("/api/v1/queues", login);
  assert.equal((await fetch(api)).status, 403);
  assert.equal((await fetch(api, { headers: { authorization: `Bearer ${token}` } })).status, 200);
  const cookie = (await fetch(login, { redirect: "manual" })).headers.get("set-cookie")?.split(";")[0] ?? "";
  assert.match(await (await fetch(new URL("/", login), { headers: { cookie } })).text(), /<title>Holdfast<\/title>/);
  ui.child.kill("SIGTERM");
  assert.deepEqual(await ui.ended.then(({ code, stderr }) => [code, stderr]), [0, ""]);
});

test("ui takes its token from the environment, and does not print it", async () => {
  const secret = "0123456789abcdef-from-the-environment";
  const ui = place.start(["ui", "--port", "0", "--json"], { env: { HOLDFAST_UI_TOKEN: secret } });
  await ui.said("address");
  const { address } = JSON.parse(ui.stdout) as { address: string };
  assert.ok(!ui.stdout.includes(secret));
  assert.equal((await fetch(`${address}api/v1/queues`, { headers: { authorization: `Bearer ${secret}` } })).status, 200);
  ui.child.kill("SIGINT");
  assert.equal((await ui.ended).code, 0);
});

test("ui refuses an address that others reach without a token, a port that does not exist, and a short token", async () => {
  const open = await place.run(["ui", "--host", "0.0.0.0", "--port", "0"]);
  assert.match(open.stderr, /ACCESS_OPEN/);
  assert.equal(open.code, 1);
  const port = await place.run(["ui", "--port", "99999"]);
  assert.match(port.stderr, /'--port <number>' argument '99999' is invalid\. Give a whole number from 0 to 65535\./);
  assert.equal(port.code, 2);
  const short = await place.run(["ui", "--token", "short"]);
  assert.match(short.stderr, /fewer than 16 characters/);
  assert.equal(short.code, 2);
});
