import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A folder for one measurement, removed afterwards. */
export async function inScratch<T>(run: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  try {
    return await run(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** A job of about 200 bytes. */
export function payload(i: number): { url: string; i: number } {
  return { url: "x".repeat(170), i };
}
