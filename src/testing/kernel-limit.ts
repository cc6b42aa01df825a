import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { HoldfastError } from "../core/text/errors.ts";

const BYTES_PER_MB = 1024 * 1024;

/** The kernel (`prlimit` of util-linux) gives the process at most this much memory beyond what it has. */
export function limitMemory(pid: number, megabytes: number): void {
  try {
    const [, kilobytes] = /^VmData:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
    if (kilobytes === undefined) throw new Error("/proc does not say what it has");
    const most = Number(kilobytes) * 1024 + Math.round(megabytes * BYTES_PER_MB);
    execFileSync("prlimit", ["--pid", String(pid), `--data=${most}`], { stdio: "pipe" });
  } catch (cause) {
    throw new HoldfastError(
      "NO_KERNEL_LIMIT",
      `Cannot limit the memory of a program by the kernel here: ${(cause as Error).message}`,
      "This needs Linux and `prlimit` of util-linux. Leave `limit` out to limit the heap by V8.",
      { cause },
    );
  }
}
