import { fork } from "node:child_process";
import { once } from "node:events";
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import type { Figure } from "./measure.ts";
import { inProject } from "./package.ts";

/** What a worker of the packed package with nothing to do costs: of one core, and of memory. */
export async function idle(): Promise<Figure[]> {
  const { share, rss } = await inProject(async (project) => {
    // It is JavaScript: the part of Node that removes types alone takes 15 MB.
    const program = join(project, "idle-worker.js");
    copyFileSync(new URL("./idle-worker.js", import.meta.url), program);
    const child = fork(program, [join(project, "work.db")]);
    const [used] = (await once(child, "message")) as [{ share: number; rss: number }];
    await once(child, "exit");
    return used;
  });
  return [
    { what: "an idle worker's share of a core", ours: share * 100, limit: 0.3, unit: "%", target: { atMost: 1 } },
    { what: "an idle worker's memory (RSS)", ours: rss / 1024 / 1024, limit: 85, unit: "MB", target: { atMost: 1 } },
  ];
}
