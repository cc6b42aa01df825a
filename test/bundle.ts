import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
} from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { bundle, ENTRIES, ROOT } from "../scripts/bundle.ts";

const CACHE = join(ROOT, "node_modules/.cache/holdfast");
const KEPT_MS = 24 * 60 * 60 * 1000;

/**
 * The bundle that the tests run: that of `npm run build`, not minified, and with every module of `src/` as an entry point
 * besides.
 */
export function bundleForTests(): Promise<string> {
  return cached("bundle", [], async (folder) => {
    const all = sources().map((path) => path.slice("src/".length));
    const entries = { ...Object.fromEntries(all.map((path) => [`src/${path.replace(/\.ts$/, "")}`, path])), ...ENTRIES };
    await bundle({ folder, entries, minify: false });
    // Beside the folder, as beside `dist/`: `holdfast --version` reads it.
    copyFileSync(join(ROOT, "package.json"), join(CACHE, "package.json"));
  });
}

/** The tarball that `npm publish` would upload, made of a fresh build. */
export async function packForTests(): Promise<string> {
  const folder = await cached(
    "package",
    ["scripts/build.ts", "scripts/pack.ts", "scripts/package-readme.md", "tsconfig.build.json", "bin/holdfast.js"],
    async (folder) => void (await promisify(execFile)(process.execPath, [join(ROOT, "scripts/pack.ts"), folder])),
  );
  return join(folder, readdirSync(folder).find((name) => name.endsWith(".tgz")) as string);
}

function sources(): string[] {
  return globSync("src/**/*.ts", { cwd: ROOT })
    .map((path) => path.replaceAll("\\", "/"))
    .toSorted();
}

const UI_FILES = [
  "scripts/ui.ts",
  "ui/index.html",
  ...globSync("ui/src/**/*", { cwd: ROOT })
    .filter((path) => /\.\w+$/.test(path))
    .toSorted(),
];

/** Makes a folder again when a file has changed that it is made of. */
async function cached(name: string, files: string[], make: (folder: string) => Promise<void>): Promise<string> {
  const hash = createHash("sha256");
  for (const path of [...sources(), ...UI_FILES, "scripts/bundle.ts", "package.json", "package-lock.json", ...files]) {
    hash.update(path).update(readFileSync(join(ROOT, path)));
  }
  const folder = join(CACHE, `${name}-${hash.digest("hex").slice(0, 16)}`);
  if (existsSync(folder)) {
    // Used today, so kept.
    utimesSync(folder, new Date(), new Date());
    return folder;
  }
  mkdirSync(CACHE, { recursive: true });
  for (const old of readdirSync(CACHE).filter((old) => old !== "package.json")) {
    if (Date.now() - statSync(join(CACHE, old)).mtimeMs > KEPT_MS) rmSync(join(CACHE, old), { recursive: true, force: true });
  }
  const making = mkdtempSync(join(CACHE, "making-"));
  // Some processes of the tests run as another user.
  chmodSync(making, 0o755);
  await make(making);
  try {
    renameSync(making, folder);
  } catch (error) {
    // Another run has made the same.
    if (!existsSync(folder)) throw error;
    rmSync(making, { recursive: true, force: true });
  }
  return folder;
}
