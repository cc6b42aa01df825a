import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

/** A folder for one test. */
export async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-recovery-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

export function programOf(name: string): string {
  return fileURLToPath(new URL(`./programs/${name}.ts`, import.meta.url));
}

/** What a program was told is safe. */
export function acceptedIn(stdout: string): { id: string }[] {
  // The last line may be half of one.
  return [...stdout.matchAll(/^accepted (\S+)\n/gm)].map(([, id]) => ({ id: id as string }));
}

/** So many orders were accepted. */
export function accepted(many: number): (program: { stdout: string }) => boolean {
  return ({ stdout }) => stdout.split("accepted ").length > many;
}
