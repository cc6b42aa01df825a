import { readFileSync, statSync } from "node:fs";

/** A lock on some bytes of a file. */
export interface ByteLock {
  pid: number;
  from: number;
  to: number;
}

/** Who has locked which bytes of a file, as Linux says; elsewhere nobody does. The file itself is not opened. */
export function locksOn(path: string): ByteLock[] {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return [];
  const device = deviceOf(stat.dev);
  // Some file systems say another device here than there; then the file's number has to do.
  const isSaid = read("/proc/self/mountinfo").includes(` ${device.said} `);
  return read("/proc/locks")
    .split("\n")
    .flatMap((line) => {
      const match = /^\d+: POSIX +\S+ +\S+ +(\d+) (\w+:\w+):(\d+) (\d+) (\d+|EOF)/.exec(line);
      if (match === null || match[3] !== String(stat.ino) || (isSaid && match[2] !== device.locked)) return [];
      return [{ pid: Number(match[1]), from: Number(match[4]), to: match[5] === "EOF" ? Infinity : Number(match[5]) }];
    });
}

/** A device as mounts and as locks spell it. */
function deviceOf(dev: number): { said: string; locked: string } {
  const [major, minor] = [(dev >>> 8) & 0xfff, (dev & 0xff) | ((dev >>> 12) & 0xfff00)];
  return { said: `${major}:${minor}`, locked: `${hex(major)}:${hex(minor)}` };
}

function hex(part: number): string {
  return part.toString(16).padStart(2, "0");
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
