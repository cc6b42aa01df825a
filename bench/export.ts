import { execFileSync } from "node:child_process";
import { closeSync, fsyncSync, openSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { items, open, pipeline } from "../src/index.ts";
import { type Figure, median } from "./measure.ts";
import { inScratch } from "./scratch.ts";

/** Each target has an output in the database and an artifact of its own. */
const pages = (targets: number) =>
  pipeline("pages")
    .source(items(() => Array.from({ length: targets }, (_, i) => `page-${i}`), { id: (name) => name }))
    .stage("page", {}, async ({ target, artifact }) => {
      await artifact("page.html", `<p>${target.id} ${"x".repeat(2_000)}</p>`);
      return { id: target.id };
    });

/** The export of a build with small files, against `cp -r` and an fsync of the same files. In milliseconds a file. */
export async function exports(targets: number, rounds: number): Promise<Figure[]> {
  return inScratch(async (folder) => {
    await using hf = await open(join(folder, "work.db"), { durability: "process" });
    const build = await hf.builds.start(pages(targets));
    if ((await build.done()).state !== "SUCCESS") throw new Error("the build failed");
    const [ours, limits]: [number[], number[]] = [[], []];
    let files = 0;
    for (let i = 0; i < rounds; i++) {
      const [exported, copied] = [join(folder, "exported"), join(folder, "copied")];
      const start = performance.now();
      await hf.builds.export(build.id, exported);
      ours.push(performance.now() - start);
      files = readFileSync(join(exported, "checksums.txt"), "utf8").split("\n").length;
      limits.push(timeCopy(exported, copied));
      for (const made of [exported, copied]) rmSync(made, { recursive: true });
    }
    return [
      {
        what: `export of ${files.toLocaleString("en")} small files, against cp -r and fsync`,
        ours: median(ours) / files,
        limit: median(limits) / files,
        unit: "ms/file",
        target: { atMost: 3 },
      },
    ];
  });
}

function timeCopy(from: string, to: string): number {
  const start = performance.now();
  execFileSync("cp", ["-r", from, to]);
  for (const name of ["", ...readdirSync(to, { recursive: true, encoding: "utf8" })]) {
    const file = openSync(join(to, name), "r");
    fsyncSync(file);
    closeSync(file);
  }
  return performance.now() - start;
}
