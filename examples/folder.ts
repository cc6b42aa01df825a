import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Where an example keeps its files: the folder that is named on the command line, else a temporary one that goes with it. */
export function exampleFolder(name: string): { path: string } & Disposable {
  const named = process.argv[2];
  if (named !== undefined) {
    mkdirSync(named, { recursive: true });
    return { path: named, [Symbol.dispose]() {} };
  }
  const path = mkdtempSync(join(tmpdir(), `holdfast-${name}-`));
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) };
}
