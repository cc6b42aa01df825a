import { spawnSync } from "node:child_process";
import { join } from "node:path";

/** A database as a killed process leaves it, with so many jobs that stand in its write-ahead log only, or also its schema. */
export function killedProducer(path: string, jobs: number, schema: "logged" | "copied" = "copied", node: string[] = []): void {
  const child = join(import.meta.dirname, "children", "killed-producer.ts");
  const { signal, stderr } = spawnSync(process.execPath, [...node, child, path, String(jobs), schema], { encoding: "utf8" });
  if (signal !== "SIGKILL") throw new Error(`the producer was not killed: ${stderr}`);
}
