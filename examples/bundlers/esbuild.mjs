// node esbuild.mjs
import { build } from "esbuild";

await build({
  entryPoints: ["app.mjs"],
  outfile: "dist/app.mjs",
  bundle: true,
  platform: "node",
  format: "esm",
  external: ["holdfast"],
});
