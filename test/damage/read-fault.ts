import { spawnSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** Fails one read of one file at one offset with EIO, when a trigger file exists; the failing read removes the trigger. */
const SOURCE = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd, off_t at, size_t n) {
  const char *file = getenv("FAULT_FILE"), *trigger = getenv("FAULT_TRIGGER"), *offset = getenv("FAULT_AT");
  if (!file || !trigger || !offset || access(trigger, F_OK) != 0) return 0;
  off_t wanted = atoll(offset);
  if (wanted < at || wanted >= at + (off_t)n) return 0;
  char link[64], name[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, sizeof name - 1);
  if (length < 0) return 0;
  name[length] = 0;
  if (strcmp(name, file) != 0 || unlink(trigger) != 0) return 0;
  errno = EIO;
  return 1;
}

ssize_t read(int fd, void *to, size_t n) {
  static ssize_t (*real)(int, void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "read");
  off_t at = getenv("FAULT_FILE") ? lseek(fd, 0, SEEK_CUR) : -1;
  if (at >= 0 && fails(fd, at, n)) return -1;
  return real(fd, to, n);
}

ssize_t pread(int fd, void *to, size_t n, off_t at) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  return fails(fd, at, n) ? -1 : real(fd, to, n, at);
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  return fails(fd, at, n) ? -1 : real(fd, to, n, at);
}
`;

/** The path of the compiled library, or why there is none. */
export function compileReadFault(folder: string): { library: string } | { missing: string } {
  if (process.platform !== "linux") return { missing: "LD_PRELOAD is tried on Linux only" };
  const source = join(folder, "read-fault.c");
  const library = join(folder, "read-fault.so");
  writeFileSync(source, SOURCE);
  const compiled = spawnSync("gcc", ["-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], { encoding: "utf8" });
  return compiled.status === 0 && existsSync(library) ? { library } : { missing: `gcc: ${compiled.error ?? compiled.stderr}` };
}
