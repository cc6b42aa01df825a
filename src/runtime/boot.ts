import { readFileSync, readlinkSync } from "node:fs";
import { hostname, uptime } from "node:os";

/** Names this run of the host: jobs that a reboot interrupted are charged no crash. */
export function bootId(): string {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  } catch {
    // Elsewhere: the time of the boot, coarse enough that reading it twice gives the same.
    return `booted-${Math.round((Date.now() / 1_000 - uptime()) / 60)}`;
  }
}

/** The same for all threads of this process and for no other process, whatever namespaces and reused pids there are. */
export function processIdentity(): string {
  try {
    const stat = readFileSync("/proc/self/stat", "utf8");
    // The name in it may hold anything, so count from its closing bracket: the start time is the 20th field after it.
    const startTime = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
    return `${readlinkSync("/proc/self/ns/pid")} ${process.pid} ${startTime}`;
  } catch {
    return `${hostname()} ${process.pid}`;
  }
}
