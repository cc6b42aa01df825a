import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import type * as z from "zod/mini";
import { type Holdfast, open } from "../../src/index.ts";
import { ROUTES } from "../../src/server/routes/index.ts";
import { serve, type ServeOptions, type Serving } from "../../src/server/serve.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";

export const TOKEN = "a-token-for-the-tests-of-the-server";

/** A served database, and calls of its API. */
export interface Site extends Serving {
  hf: Holdfast;
  /** Any address below the server's, with the token unless `headers` say otherwise. */
  fetch(path: string, init?: RequestInit): Promise<Response>;
  /** The answer of an operation, checked against its schema. */
  call<T = Record<string, never>>(id: string, given?: Given): Promise<T>;
}

interface Given {
  path?: Record<string, string>;
  query?: Record<string, string>;
  body?: unknown;
}

/** Operations that were called, over all tests of a file. */
export const called = new Set<string>();

export const STORES = ["sqlite", "postgres"] as const;
export type StoreName = (typeof STORES)[number];

let server: Promise<PostgresServer> | null = null;
export async function endServer(): Promise<void> {
  if (server !== null) await (await server).close();
}
export function skips(store: StoreName): { skip?: string } {
  return store === "postgres" && noServer !== false ? { skip: noServer } : {};
}

export async function site(t: TestContext, store: StoreName = "sqlite", options: Partial<ServeOptions> = {}): Promise<Site> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-server-"));
  const where = store === "sqlite" ? join(folder, "work.db") : await (await (server ??= startServer())).createDatabase();
  const hf = await open(where, { log: false, artifacts: join(folder, "artifacts") });
  const serving = await serve(hf, options.authorize === undefined ? { token: TOKEN, ...options } : options);
  t.after(async () => {
    await serving.close();
    await hf.close();
    rmSync(folder, { recursive: true, force: true });
  });
  const send = (path: string, { headers, ...init }: RequestInit = {}) =>
    fetch(new URL(path, serving.address), {
      ...init,
      headers: { authorization: `Bearer ${TOKEN}`, "content-type": "application/json", ...(headers as Record<string, string>) },
      redirect: "manual",
    });
  return {
    ...serving,
    hf,
    fetch: send,
    async call(id, { path = {}, query = {}, body } = {}) {
      const route = ROUTES.find((one) => one.id === id);
      assert.ok(route, `There is no operation ${id}.`);
      called.add(id);
      const url = route.url.replaceAll(/:(\w+)/g, (_, name: string) => encodeURIComponent(path[name] ?? ""));
      const response = await send(`api/v1${url}?${new URLSearchParams(query).toString()}`, {
        method: route.method.toUpperCase(),
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const answer = (await response.json()) as { error?: { code: string; message: string } };
      assert.equal(response.status, 200, JSON.stringify(answer));
      const parsed = (route.answer as z.ZodMiniType).safeParse(answer);
      assert.ok(parsed.success, `${id}: ${JSON.stringify(parsed.error?.issues)} in ${JSON.stringify(answer)}`);
      assert.deepEqual(parsed.data, answer, `${id} answers with fields that its schema does not have`);
      return answer as never;
    },
  };
}

export async function errorOf(response: Response): Promise<{ status: number; code: string; hint: string }> {
  const { error } = (await response.json()) as { error: { code: string; message: string; hint: string } };
  assert.ok(error.message.length > 0 && error.hint.length > 0);
  return { status: response.status, code: error.code, hint: error.hint };
}
