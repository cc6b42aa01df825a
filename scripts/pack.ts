import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { ROOT } from "./bundle.ts";

/*
 * `npm run pack`: builds, and packs what is published into the root or the given folder. The package has a README of its own,
 * because the links of the repository's lead to files that are not packed, and `npm pack` always takes the one at the root.
 */
const target = resolve(process.argv[2] ?? ROOT);
const folder = mkdtempSync(join(tmpdir(), "holdfast-pack-"));
try {
  mkdirSync(target, { recursive: true });
  execFileSync(process.execPath, [join(ROOT, "scripts/build.ts"), join(folder, "dist")], { stdio: "inherit" });
  for (const name of ["LICENSE", "bin"]) cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  cpSync(join(ROOT, "scripts/package-readme.md"), join(folder, "README.md"));
  const own = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as Record<string, unknown>;
  for (const part of ["scripts", "workspaces", "devDependencies", "overrides"]) delete own[part];
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(own, null, 2)}\n`);
  execFileSync("npm", ["pack", "--silent", "--pack-destination", target], {
    cwd: folder,
    stdio: "inherit",
    shell: process.platform === "win32",
  });
} finally {
  rmSync(folder, { recursive: true, force: true });
}
