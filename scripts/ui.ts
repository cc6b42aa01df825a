import { join } from "node:path";
import { build } from "vite";

const UI = join(import.meta.dirname, "../ui");

/** Builds the dashboard: index.html, app.js and app.css, with relative addresses, so that it works below any path. */
export async function buildUi(folder = join(UI, "dist")): Promise<void> {
  await build({
    root: UI,
    base: "./",
    configFile: false,
    logLevel: "warn",
    oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
    build: {
      outDir: folder,
      emptyOutDir: true,
      modulePreload: false,
      assetsInlineLimit: 0,
      rolldownOptions: { output: { entryFileNames: "app.js", chunkFileNames: "app-[name].js", assetFileNames: "app[extname]" } },
    },
  });
}

if (import.meta.main) await buildUi();
