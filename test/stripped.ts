import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { transformSync } from "esbuild";
import { joined } from "./joined.ts";

const ROOT = join(import.meta.dirname, "../");

/** Before the path of a module of `src` as it is, where they are joined. */
export const PLAIN = "plain:";

/** Where each text begins and how long it is, and in which script a module is. */
export interface Places {
  texts: Record<string, [from: number, length: number]>;
  within: Record<string, string>;
}

/**
 * Writes all TypeScript of this repository into one file, without its types, as Node would take them away: what stays is
 * in its place. With `joins`, the modules of `src` are in a few scripts; with `lowers`, all are as Node 22 can read them.
 * `places.json` says where each is.
 */
export function strip(folder: string, { joins, lowers = false }: { joins: boolean; lowers?: boolean }): void {
  const places: Places = { texts: {}, within: {} };
  const all: Buffer[] = [];
  let from = 0;
  // That the function is new has not to be said in each run: without it, Node does the same.
  const { emitWarning } = process;
  process.emitWarning = () => {};
  const texts = new Map<string, string>();
  for (const path of modules("src", "test", "examples")) {
    const text = readFileSync(join(ROOT, path), "utf8");
    texts.set(path, lowers ? lowered(text) : stripTypeScriptTypes(text));
  }
  process.emitWarning = emitWarning;
  if (joins) {
    const ours = new Map([...texts].filter(([path]) => path.startsWith("src/")));
    const { scripts, within, modules } = joined(ours, pathToFileURL(ROOT).href);
    for (const [path, text] of ours) texts.set(PLAIN + path, text);
    for (const [path, text] of [...scripts, ...modules]) texts.set(path, text);
    places.within = Object.fromEntries(within);
  }
  for (const [path, text] of texts) {
    const bytes = Buffer.from(text);
    places.texts[path] = [from, bytes.length];
    all.push(bytes);
    from += bytes.length;
  }
  writeFileSync(join(folder, "text"), Buffer.concat(all));
  writeFileSync(join(folder, "places.json"), JSON.stringify(places));
}

/** Node 22 cannot read `await using`. */
function lowered(text: string): string {
  const tsconfigRaw = { compilerOptions: { verbatimModuleSyntax: true } };
  return transformSync(text, { loader: "ts", target: "node22", tsconfigRaw }).code;
}

function modules(...folders: string[]): string[] {
  return folders.flatMap((folder) =>
    readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
      .filter((path) => path.endsWith(".ts"))
      .map((path) => `${folder}/${path.replaceAll("\\", "/")}`),
  );
}
