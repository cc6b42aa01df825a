// vite build --config vite.config.mjs
import { defineConfig } from "vite";

export default defineConfig({
  ssr: { noExternal: true, external: ["holdfast"] },
  build: { ssr: "app.mjs", outDir: "dist" },
});
