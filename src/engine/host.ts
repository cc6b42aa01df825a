import { readFileSync, readlinkSync } from "node:fs";
import { hostname, uptime } from "node:os";
import type { Clock } from "../core/text/duration.ts";

/** Identifies this boot of the host, so that jobs that a reboot interrupted are charged no crash. */
export function bootId(): string {
  const simulated = process.env[BOOT_VARIABLE];
  if (simulated !== undefined) return simulated;
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  } catch {
    // Other systems use the boot time, rounded so that two reads give the same.
    return `booted-${Math.round((Date.now() / 1_000 - uptime()) / 60)}`;
  }
}

/** Environment variable that replaces the boot id in programs that a simulated power cut ends. */
export const BOOT_VARIABLE = "HOLDFAST_SIMULATED_BOOT";

/** Identifies this process: equal for all its threads and unlike any other process, also with namespaces and reused pids. */
export function processIdentity(): string {
  try {
    const stat = readFileSync("/proc/self/stat", "utf8");
    // The program's name may hold anything, so count from its closing bracket: the start time is the 20th field after it.
    const startTime = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
    return `${readlinkSync("/proc/self/ns/pid")} ${process.pid} ${startTime}`;
  } catch {
    return `${hostname()} ${process.pid}`;
  }
}

/** The system's clock. Its monotonic time is the kernel's, so that the threads of a process agree on it. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic,
  after(millis, call) {
    let timer: NodeJS.Timeout;
    // Node's timers reach 24 days, so longer ones are made of several.
    const wait = (left: number) => {
      const step = Math.min(left, 2 ** 31 - 1);
      timer = setTimeout(() => (left > step ? wait(left - step) : call()), step).unref();
    };
    wait(millis);
    return () => clearTimeout(timer);
  },
};

/** Completes a user's clock. If it has only the wall time, timers and monotonic time stay real. */
export function clockFrom(given: { now(): number } | undefined): Clock {
  if (given === undefined) return systemClock;
  if ("monotonic" in given && "after" in given) return given as Clock;
  return { ...systemClock, now: () => Math.round(given.now()) };
}

function monotonic(): number {
  const [seconds, nanos] = process.hrtime();
  return seconds * 1_000 + nanos / 1_000_000;
}
