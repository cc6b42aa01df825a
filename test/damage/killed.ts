import { spawnSync } from "node:child_process";
import { join } from "node:path";

/** A database as a killed process leaves it, with so many jobs that stand in its write-ahead log only. */
export function killedProducer(path: string, jobs: number): void {
  const child = join(import.meta.dirname, "children", "killed-producer.ts");
  const { signal, stderr } = spawnSync(process.execPath, [child, path, String(jobs)], { encoding: "utf8" });
  if (signal !== "SIGKILL") throw new Error(`the producer was not killed: ${stderr}`);
}
