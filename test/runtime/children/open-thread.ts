import { parentPort, workerData } from "node:worker_threads";
import { type HoldfastError, open } from "../../../src/index.ts";

const { path, driver } = workerData as { path: string; driver: "node:sqlite" | "better-sqlite3" };
try {
  const hf = await open(path, { driver });
  await hf.close();
  parentPort?.postMessage("opened");
} catch (error) {
  parentPort?.postMessage((error as HoldfastError).code);
}
