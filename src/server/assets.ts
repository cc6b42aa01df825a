import { createHash } from "node:crypto";
import { extname } from "node:path";
import type { Hono } from "hono";
import type { Env } from "./handler.ts";
import { dashboardFiles } from "./dashboard-files.ts";

const TYPES: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};
const INDEX = "index.html";

interface Asset {
  bytes: Uint8Array<ArrayBuffer>;
  type: string;
  tag: string;
}

/** Serves the dashboard's files. All addresses in them are relative, so that the dashboard works below any path. */
export function dashboard(app: Hono<Env>, { title = "Holdfast" }: { title?: string }): void {
  let assets: Map<string, Asset> | null = null;
  app.get("/:file?", async (c, next) => {
    assets ??= load(title);
    const asset = assets.get(c.req.param("file") ?? INDEX);
    if (asset === undefined)
      return assets.size === 0 ? c.text("The dashboard is not built. Run `npm run ui`, and start again.", 404) : next();
    const headers = { "content-type": asset.type, etag: asset.tag, "cache-control": "no-cache" };
    return c.req.header("if-none-match") === asset.tag ? c.body(null, 304, headers) : c.body(asset.bytes, 200, headers);
  });
}

function load(title: string): Map<string, Asset> {
  return new Map(
    Object.entries(dashboardFiles()).map(([name, stored]) => {
      const bytes = name === INDEX ? titled(stored, title) : new Uint8Array(stored);
      const tag = `"${createHash("sha256").update(bytes).digest("base64url").slice(0, 22)}"`;
      return [name, { bytes, type: TYPES[extname(name)] ?? "application/octet-stream", tag }];
    }),
  );
}

function titled(html: Uint8Array, title: string): Uint8Array<ArrayBuffer> {
  const safe = title.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
  return new TextEncoder().encode(
    new TextDecoder().decode(html).replace("<title>Holdfast</title>", () => `<title>${safe}</title>`),
  );
}
