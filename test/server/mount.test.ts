import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { serve as serveHono } from "@hono/node-server";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import { job } from "../../src/index.ts";
import { handler, nodeHandler } from "../../src/server/index.ts";
import { ROUTES } from "../../src/server/routes/index.ts";
import { page } from "../docs/pages.ts";
import { site } from "./parts.ts";

const BASE = "/admin/jobs";

/** The handler below a path of an app, which answers another address itself. */
async function admin(t: TestContext): Promise<(request: Request) => Promise<Response>> {
  const { hf } = await site(t);
  return handler(hf, { basePath: BASE, authorize: () => ({ role: "operate", user: "ann" }) });
}

async function isMounted(t: TestContext, server: Server): Promise<void> {
  if (!server.listening) await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  assert.equal(await (await fetch(`${at}/own`)).text(), "own");
  const headers = { "x-holdfast": "1" };
  const enqueued = await fetch(`${at}${BASE}/api/v1/jobs`, { method: "POST", headers, body: JSON.stringify({ name: "mail" }) });
  const { id } = (await enqueued.json()) as { id: string };
  const listed = (await (await fetch(`${at}${BASE}/api/v1/jobs`)).json()) as { items: { id: string }[] };
  assert.deepEqual(
    listed.items.map((one) => one.id),
    [id],
  );
  assert.match(await (await fetch(`${at}${BASE}/`)).text(), /<title>Holdfast<\/title>/);
  const moved = await fetch(`${at}${BASE}`, { redirect: "manual" });
  assert.deepEqual([moved.status, moved.headers.get("location")], [308, `${BASE}/`]);
  const stream = await fetch(`${at}${BASE}/api/v1/changes`);
  assert.equal(stream.headers.get("content-type"), "text/event-stream");
  await stream.body?.cancel();
}

test("the handler is mounted in Hono", async (t) => {
  const answer = await admin(t);
  const app = new Hono();
  app.get("/own", (c) => c.text("own"));
  app.all(`${BASE}/*`, (c) => answer(c.req.raw));
  const server = serveHono({ fetch: app.fetch, hostname: "127.0.0.1", port: 0 }) as Server;
  await new Promise((resolve) => server.once("listening", resolve));
  await isMounted(t, server);
});

test("the handler is mounted in Express", async (t) => {
  const answer = nodeHandler(await admin(t));
  const app = express();
  app.get("/own", (_request, response) => void response.send("own"));
  app.all(`${BASE}{/*path}`, answer);
  await isMounted(t, createServer(app));
});

test("a body that another parser has read is refused, and removes no job", async (t) => {
  const { hf } = await site(t);
  const answer = nodeHandler(handler(hf, { basePath: BASE, authorize: () => ({ role: "operate" }) }));
  const app = express();
  app.use(express.json());
  app.all(`${BASE}{/*path}`, answer);
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const { id } = await hf.enqueue(job({ name: "mail", run: () => null }), 1);
  await hf.jobs.cancel(id);
  const send = async (path: string, init: RequestInit) => {
    const headers = { "x-holdfast": "1", "content-type": "application/json" };
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}${BASE}/api/v1${path}`;
    const response = await fetch(url, { method: "POST", headers, ...init });
    return ((await response.json()) as { error?: { message: string } }).error?.message ?? response.status;
  };
  const body = JSON.stringify({ queue: "other", state: "failed", dryRun: true });
  for (const action of ["remove", "cancel", "retry"]) {
    assert.equal(await send(`/jobs/${action}-all`, { body }), "The body was read before Holdfast.");
    const chunked = { body: new Blob([body]).stream(), duplex: "half" } as RequestInit;
    assert.equal(await send(`/jobs/${action}-all`, chunked), "The body was read before Holdfast.");
    assert.equal(await send(`/jobs/${action}-all`, {}), "The body is missing.");
  }
  assert.equal((await hf.jobs.counts()).cancelled, 1);
  assert.equal(await send("/queues/mail/pause", {}), 200);
});

test("the handler is mounted in Fastify", async (t) => {
  const answer = nodeHandler(await admin(t));
  const app = fastify();
  app.get("/own", () => "own");
  // Fastify reads no body of these requests.
  await app.register(async (mounted) => {
    mounted.removeAllContentTypeParsers();
    mounted.addContentTypeParser("*", (_request, _payload, done) => done(null));
    for (const path of [BASE, `${BASE}/*`])
      mounted.all(path, (request, reply) => {
        reply.hijack();
        void answer(request.raw, reply.raw);
      });
  });
  await app.listen({ host: "127.0.0.1", port: 0 });
  t.after(() => app.close());
  await isMounted(t, app.server);
});

test("the handler is a route handler of Next.js, which gets a Request and returns a Response", async (t) => {
  const answer = await admin(t);
  const route = { GET: answer, POST: answer, DELETE: answer };
  const response = await route.GET(new Request(`http://localhost${BASE}/api/v1/queues`));
  assert.deepEqual(await response.json(), { items: [] });
  const removal = { method: "DELETE", headers: { "x-holdfast": "1" } };
  const removed = await route.DELETE(new Request(`http://localhost${BASE}/api/v1/schedules/nightly`, removal));
  assert.deepEqual(await removed.json(), { changed: false });
  // Next.js answers 405 for a method that the recipe does not export.
  const [, recipe = ""] = /^\| Next\.js \| (.*) \|$/m.exec(page("docs/dashboard.md").text) ?? [];
  for (const { method } of ROUTES) assert.match(recipe, new RegExp(`\\b${method.toUpperCase()} = admin\\b`));
});
