import { readFileSync } from "node:fs";
import { uptime } from "node:os";

/** Names this run of the host: jobs that a reboot interrupted are charged no crash. */
export function bootId(): string {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  } catch {
    // Elsewhere: the time of the boot, coarse enough that reading it twice gives the same.
    return `booted-${Math.round((Date.now() / 1_000 - uptime()) / 60)}`;
  }
}
