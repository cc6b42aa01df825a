import { rmSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { rolldown } from "rolldown";
import { dts } from "rolldown-plugin-dts";
import { bundle, EXTERNAL, ROOT } from "./bundle.ts";

/*
 * `npm run build`: everything that is published besides `bin/`, into `dist/` or the given folder.
 */
const folder = process.argv[2] ?? join(ROOT, "dist");
rmSync(folder, { recursive: true, force: true });
const chunks = await bundle({ folder, minify: true });
await declare();
await writeFile(join(folder, "licenses.txt"), await licenses(chunks.flatMap(({ moduleIds }) => moduleIds)));

/** The declarations of the public entry points, with what both name in one file. */
async function declare(): Promise<void> {
  const build = await rolldown({
    input: {
      index: join(ROOT, "src/index.ts"),
      testing: join(ROOT, "src/testing/index.ts"),
      server: join(ROOT, "src/server/index.ts"),
    },
    platform: "node",
    external: EXTERNAL,
    plugins: dts({ cwd: ROOT, tsconfig: "tsconfig.build.json", emitDtsOnly: true }),
  });
  await build.write({ dir: folder, format: "es", chunkFileNames: "[name].d.ts" });
  await build.close();
}

/** Bundled packages ask for nothing but that their licence comes along. */
async function licenses(ids: string[]): Promise<string> {
  const names = new Set(
    ids.map((id) => /[\\/]node_modules[\\/]((?:@[^\\/]+[\\/])?[^\\/]+)[\\/]/.exec(id)?.[1]).filter((name) => name !== undefined),
  );
  const texts = [...names].toSorted().map(async (name) => {
    const { version } = JSON.parse(await readFile(join(ROOT, "node_modules", name, "package.json"), "utf8")) as {
      version: string;
    };
    const file = name === "ignore" ? "LICENSE-MIT" : "LICENSE";
    return `${name} ${version}\n\n${await readFile(join(ROOT, "node_modules", name, file), "utf8")}`;
  });
  return (await Promise.all(texts)).join(`\n${"-".repeat(80)}\n\n`);
}
