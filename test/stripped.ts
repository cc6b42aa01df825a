import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { join } from "node:path";

const ROOT = join(import.meta.dirname, "..");

/**
 * Writes all TypeScript of this repository into one file, without its types, as Node would take them away: what stays is
 * in its place. `places.json` says where each begins and how long it is.
 */
export function strip(folder: string): void {
  const places: Record<string, [from: number, length: number]> = {};
  const all: Buffer[] = [];
  let from = 0;
  // That the function is new has not to be said in each run: without it, Node does the same.
  const { emitWarning } = process;
  process.emitWarning = () => {};
  for (const path of modules("src", "test", "examples")) {
    const bytes = Buffer.from(stripTypeScriptTypes(readFileSync(join(ROOT, path), "utf8")));
    places[path] = [from, bytes.length];
    all.push(bytes);
    from += bytes.length;
  }
  process.emitWarning = emitWarning;
  writeFileSync(join(folder, "text"), Buffer.concat(all));
  writeFileSync(join(folder, "places.json"), JSON.stringify(places));
}

function modules(...folders: string[]): string[] {
  return folders.flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
      .filter((path) => path.endsWith(".ts"))
      .map((path) => `${folder}/${path.replaceAll("\\", "/")}`),
  );
}
