import assert from "node:assert/strict";
import { once } from "node:events";
import { connect } from "node:net";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";
import { type Access, handler } from "../../src/server/index.ts";
import { ROUTES } from "../../src/server/routes/index.ts";
import { serve } from "../../src/server/serve.ts";
import { errorOf, site, TOKEN } from "./parts.ts";

const ENQUEUE = { method: "POST", body: JSON.stringify({ name: "mail" }) };

test("a handler without authorize answers everything with 403 and the hint", async (t) => {
  const { hf } = await site(t);
  const answer = handler(hf);
  for (const path of ["/", "/api/v1/jobs", "/metrics", "/health/ready"]) {
    const { status, code, hint } = await errorOf(await answer(new Request(`http://localhost${path}`)));
    assert.deepEqual([status, code], [403, "NO_ACCESS"]);
    assert.match(hint, /authorize/);
  }
});

test("a wrong token and no token have no access, and guessing is cut off", async (t) => {
  const one = await site(t);
  assert.equal((await one.fetch("api/v1/jobs", { headers: { authorization: "" } })).status, 403);
  const statuses = new Set<number>();
  for (let i = 0; i < 25; i++)
    statuses.add((await one.fetch("api/v1/jobs", { headers: { authorization: `Bearer ${i}` } })).status);
  assert.deepEqual([...statuses], [403, 429]);
  assert.equal((await one.fetch("api/v1/jobs")).status, 200, "the right token is never locked out");
  assert.equal((await one.fetch("health/live", { headers: { authorization: "" } })).status, 200);
});

test("a browser's code is exchanged once for a cookie that no script and no other site gets", async (t) => {
  const one = await site(t);
  const login = one.newLoginAddress() as string;
  assert.ok(!login.includes(TOKEN));
  const first = await fetch(login, { redirect: "manual" });
  const cookie = first.headers.get("set-cookie") ?? "";
  assert.match(cookie, /; HttpOnly; SameSite=Strict$/);
  assert.equal(first.headers.get("location"), "/");
  const headers = { authorization: "", cookie: cookie.split(";")[0] as string };
  assert.equal((await one.fetch("api/v1/jobs", { headers })).status, 200);
  const used = await fetch(login, { redirect: "manual" });
  assert.deepEqual([used.status, used.headers.get("set-cookie")], [403, null]);
  assert.match(await used.text(), /^The code in this address was used, has expired, /);
  assert.equal((await fetch(login, { headers: { cookie: headers.cookie }, redirect: "manual" })).status, 303);
  assert.equal((await one.fetch("api/v1/jobs", { ...ENQUEUE, headers })).status, 403);
  assert.equal((await one.fetch("api/v1/jobs", { ...ENQUEUE, headers: { ...headers, "x-holdfast": "1" } })).status, 200);
});

test("a request that names another host is rejected", async (t) => {
  const one = await site(t);
  const { port } = new URL(one.address);
  const socket = connect(Number(port), "127.0.0.1");
  socket.write(`GET /api/v1/jobs HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer ${TOKEN}\r\nConnection: close\r\n\r\n`);
  const [answer] = (await once(socket, "data")) as [Buffer];
  assert.match(answer.toString(), /^HTTP\/1.1 421 /);
});

test("a write from another origin is rejected, and changes nothing", async (t) => {
  const one = await site(t);
  for (const headers of [{ origin: "https://evil.example" }, { origin: "null" }, { "sec-fetch-site": "cross-site" }]) {
    const { status, code, hint } = await errorOf(await one.fetch("api/v1/jobs", { ...ENQUEUE, headers: headers as never }));
    assert.deepEqual([status, code], [403, "ORIGIN_REFUSED"]);
    assert.match(hint, /proxy must pass the header Host/);
  }
  const { host } = new URL(one.address);
  assert.equal((await one.fetch("api/v1/jobs", { ...ENQUEUE, headers: { origin: `http://${host}` } })).status, 200);
  assert.equal((await one.hf.jobs.counts()).pending, 1);
});

test("each role can do what it may, and no more", async (t) => {
  let access: Access = { role: "none" };
  const one = await site(t, "sqlite", { authorize: () => access });
  const status = async (path: string, init?: RequestInit) => (await one.fetch(path, init)).status;
  const tries = async () => [
    await status("api/v1/jobs"),
    await status("api/v1/jobs", ENQUEUE),
    await status("api/v1/claims", { method: "POST", body: JSON.stringify({ queue: "none", worker: "w" }) }),
    await status("api/v1/builds/none/token", { method: "POST" }),
  ];
  assert.deepEqual(await tries(), [403, 403, 403, 403]);
  access = { role: "read", user: "ann" };
  assert.deepEqual(await tries(), [200, 403, 403, 403]);
  access = { role: "operate", user: "ben" };
  assert.deepEqual(await tries(), [200, 200, 200, 403]);
  access = { role: "approve", user: "eve" };
  assert.deepEqual(await tries(), [200, 200, 200, 404]);
  const { items } = await one.call<{ items: { subject: string; after: { user: string } }[] }>("audit.list");
  assert.deepEqual(
    items.map(({ subject, after }) => `${after.user} ${subject}`),
    ["eve api:POST /api/v1/builds/none/token", "eve api:POST /api/v1/jobs", "ben api:POST /api/v1/jobs"],
  );
});

test("the role `read` can call no route that changes something", () => {
  const writes = ROUTES.filter(({ method, role }) => method !== "get" && role === "read");
  assert.deepEqual(
    writes.map(({ id }) => id),
    ["audit.verify"],
    "which only reads",
  );
});

test("a body of 10 MB is rejected, and nothing is stored", async (t) => {
  const one = await site(t);
  const body = JSON.stringify({ name: "mail", input: "x".repeat(10_000_000) });
  const { status, code } = await errorOf(await one.fetch("api/v1/jobs", { method: "POST", body }));
  assert.deepEqual([status, code], [413, "BODY_TOO_LARGE"]);
  assert.equal((await one.hf.jobs.counts()).pending, 0);
});

test("a body that is nested too deeply is called so", async (t) => {
  const one = await site(t);
  const body = `{"name":"mail","input":${"[".repeat(100_000)}${"]".repeat(100_000)}}`;
  const response = await one.fetch("api/v1/jobs", { method: "POST", body });
  const { error } = (await response.json()) as { error: { code: string; message: string } };
  assert.deepEqual([error.code, error.message], ["REQUEST_INVALID", "The body is nested too deeply."]);
});

test("a bind beyond loopback needs a token or authorize", async (t) => {
  const { hf } = await site(t);
  await assert.rejects(serve(hf, { host: "0.0.0.0" }), { code: "ACCESS_OPEN" });
});

const fail = (): never => {
  throw new Error("the session store is down");
};

test("an error of `authorize` or `redact` is in the log, and not in the answer", async () => {
  const lines: string[] = [];
  const write = (message: string, data?: object) => void lines.push(`${message} ${JSON.stringify(data)}`);
  await using hf = await open(":memory:", { log: { debug: write, info: write, warn: write, error: write } });
  const { id } = await hf.enqueue(job({ name: "mail", run: () => null }), 1);
  for (const options of [{ authorize: fail }, { authorize: () => ({ role: "read" as const }), redact: fail }]) {
    lines.length = 0;
    const response = await handler(hf, options)(new Request(`http://localhost/api/v1/jobs/${id}`));
    assert.deepEqual(await errorOf(response), { status: 500, code: "INTERNAL", hint: "See the server's log." });
    assert.match(lines.join("\n"), /^a request failed .*"path":"\/api\/v1\/jobs\/.*the session store is down/);
  }
});

test("an answer does not force TLS on the site", async (t) => {
  const one = await site(t);
  assert.equal((await one.fetch("api/v1/jobs")).headers.get("strict-transport-security"), null);
});

test("pages forbid scripts of other hosts, inline scripts and framing", async (t) => {
  const one = await site(t);
  const policy = (await one.fetch("api/v1/jobs")).headers.get("content-security-policy") ?? "";
  assert.match(policy, /default-src 'none'/);
  assert.match(policy, /script-src 'self'/);
  assert.match(policy, /frame-ancestors 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
});

test("redact decides what of a job is shown", async (t) => {
  const one = await site(t, "sqlite", {
    authorize: () => ({ role: "read" }),
    redact: (seen) => ({ ...seen, input: "hidden" }),
  });
  const { id } = await one.hf.enqueue(job({ name: "mail", run: () => null }), { password: "secret" });
  for (const path of ["api/v1/jobs", `api/v1/jobs/${id}`]) assert.doesNotMatch(await (await one.fetch(path)).text(), /secret/);
});

test("an authorize without a role gives no access", async (t) => {
  for (const access of [undefined, {}, { role: "admin" }]) {
    const one = await site(t, "sqlite", { authorize: () => access as Access });
    assert.deepEqual((await errorOf(await one.fetch("api/v1/jobs"))).code, "NO_ACCESS");
  }
});

test("a person who opens an address without access sees an explanation", async (t) => {
  const one = await site(t);
  const page = await one.fetch("", { headers: { authorization: "", accept: "text/html" } });
  assert.match(page.headers.get("content-type") ?? "", /^text\/plain/);
  assert.match(await page.text(), /^The token is missing or wrong\.\nSend the token /);
});

test("an integer that JavaScript cannot hold is rejected, not rounded", async (t) => {
  const one = await site(t);
  const send = (input: string) => one.fetch("api/v1/jobs", { method: "POST", body: `{ "name": "mail", "input": ${input} }` });
  for (const input of ["12345678901234567890", '[1, { "id": -9007199254740993 }]'])
    assert.equal((await errorOf(await send(input))).code, "REQUEST_INVALID", input);
  for (const input of ["9007199254740991", "1.5", "1e300", '"12345678901234567890"'])
    assert.equal((await send(input)).status, 200, input);
});

test("an error of a user's own function is not shown", async (t) => {
  const one = await site(t, "sqlite", {
    authorize: () => {
      throw new Error("password=secret");
    },
  });
  const response = await one.fetch("api/v1/jobs");
  assert.equal(response.status, 500);
  assert.doesNotMatch(await response.text(), /secret/);
});

test("a thousand open streams are served, one more is rejected, and requests are still answered", async (t) => {
  const one = await site(t);
  const streams = await Promise.all(Array.from({ length: 1_000 }, () => one.fetch("api/v1/changes")));
  assert.ok(streams.every(({ status }) => status === 200));
  assert.equal((await one.fetch("api/v1/changes")).status, 429);
  assert.equal((await one.fetch("api/v1/jobs")).status, 200);
  await Promise.all(streams.map(({ body }) => body?.cancel()));
});

test("a client that does not read its stream is disconnected, and one that reads gets every event", async (t) => {
  const { hf } = await site(t);
  const answer = handler(hf, { authorize: () => ({ role: "read" }) });
  const [slow, quick] = await Promise.all([1, 2].map(() => answer(new Request("http://localhost/api/v1/events/stream"))));
  const talk = job<number>({ name: "talk", queue: { name: "talk", events: true }, run: () => null });
  const sent = 5_000;
  const enqueued = hf.enqueueMany(
    talk,
    Array.from({ length: sent }, (_, i) => i),
  );
  let read = 0;
  for await (const chunk of (quick?.body ?? []) as AsyncIterable<Uint8Array>) {
    read += new TextDecoder().decode(chunk).split("\n\n").filter(isEvent).length;
    if (read === sent) break;
  }
  await enqueued;
  // Its body has ended: that of an open stream would not.
  const buffered = ((await slow?.text()) ?? "").split("\n\n").filter(isEvent).length;
  assert.ok(buffered <= 1_000, `${buffered} were buffered`);
});

const isEvent = (text: string) => text.startsWith("id: ");

test("a client that sends its request bit by bit delays no other", async (t) => {
  const one = await site(t);
  const { hostname, port } = new URL(one.address);
  const slow = Array.from({ length: 200 }, () => connect(Number(port), hostname));
  t.after(() => slow.forEach((socket) => socket.destroy()));
  await Promise.all(slow.map((socket) => once(socket, "connect")));
  for (const socket of slow) socket.write("POST /api/v1/jobs HTTP/1.1\r\nHost: ");
  assert.equal((await one.fetch("api/v1/queues")).status, 200);
});

test("HEAD of a stream opens none", async (t) => {
  const one = await site(t);
  for (const path of ["api/v1/changes", "api/v1/events/stream"])
    for (let i = 0; i < 600; i++) assert.equal((await one.fetch(path, { method: "HEAD" })).status, 200);
  const stream = await one.fetch("api/v1/changes");
  assert.equal(stream.status, 200);
  await stream.body?.cancel();
});

test("a login redirects only to this server, and its cookie is bound to its port", async (t) => {
  const one = await site(t);
  const { port } = new URL(one.address);
  const { search } = new URL(one.newLoginAddress() as string);
  const answer = await fetch(`${one.address}/evil.example/${search}`, { redirect: "manual" });
  assert.equal(answer.headers.get("location"), "/evil.example/");
  const login = await fetch(one.newLoginAddress() as string, { redirect: "manual" });
  assert.match(login.headers.get("set-cookie") ?? "", new RegExp(`^holdfast-session-${port}=`));
});

test("the handler works below any path", async (t) => {
  const { hf } = await site(t);
  const answer = handler(hf, { basePath: "/admin/jobs/", authorize: () => ({ role: "read" }) });
  const status = async (path: string) => (await answer(new Request(`http://localhost${path}`))).status;
  assert.equal(await status("/admin/jobs/api/v1/jobs"), 200);
  assert.equal(await status("/admin/jobs"), 308);
  assert.equal(await status("/admin/jobs/none"), 404);
});
