import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

/** Reads the built dashboard by file name. `scripts/bundle.ts` replaces this module with the files themselves. */
export function dashboardFiles(): Record<string, Uint8Array> {
  const folder = join(import.meta.dirname, "../../ui/dist");
  try {
    return Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name))]));
  } catch {
    return {};
  }
}
