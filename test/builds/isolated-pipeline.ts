import { files, items, pipeline } from "../../src/index.ts";

/** Each stage in a process of its own; one line kills its process the first time, another always. */
export const isolated = pipeline("isolated", { module: import.meta.url })
  .source(files("*.txt", { root: process.env["ISOLATED_FILES"] ?? "." }))
  .expand("lines", { isolate: "process" }, async function* ({ target }) {
    const text = new TextDecoder().decode(await target.bytes());
    for (const [i, line] of text.split("\n").entries()) yield { id: `${target.id}#${i}`, value: line };
  })
  .stage(
    "upper",
    { isolate: "process", crashes: 2, retry: { delay: 1 } },
    async ({ input, cost, artifact, target, attempt, log }) => {
      if (input === "dies" || (input === "dies once" && attempt === 1)) process.kill(process.pid, "SIGKILL");
      if (input === "throws") throw new Error("it threw");
      cost({ usd: 0.5 });
      log.info("worked", { pid: process.pid });
      await artifact("line.txt", input);
      return { line: input.toUpperCase(), bytes: target.parent.size, pid: process.pid };
    },
  )
  .gather("all", { isolate: "process", partial: true }, async ({ inputs, failed }) => {
    const lines: string[] = [];
    for await (const { output, target } of inputs) lines.push(`${target.id} ${output.line} ${output.bytes}`);
    return new TextEncoder().encode(`${lines.join("\n")}\n${failed} failed`);
  });

/** More than fits into a pipe at once. */
export const large = pipeline("large", { module: import.meta.url })
  .source(items(() => [3e5, 5e6], { id: String }))
  .stage("text", { isolate: "process" }, ({ input }) => "z".repeat(input))
  .stage("bytes", { isolate: "process" }, ({ input }) => new TextEncoder().encode(input));

class Point {
  x = 1;
}

/** A checkpoint that a clone would bend. */
export const kept = pipeline("kept", { module: import.meta.url })
  .source(items(() => ["a"], { id: (id) => id }))
  .stage("save", { isolate: "process", retry: { attempts: 1 } }, async ({ checkpoint }) => {
    await checkpoint.save({ zero: -0 });
    const loaded = await checkpoint.load();
    const refused = await checkpoint.save({ points: [new Point()] }).catch((error: Error) => error.message);
    return { loaded, refused };
  });

/** What it answers is no JSON. */
export const bent = pipeline("bent", { module: import.meta.url })
  .source(items(() => ["a"], { id: (id) => id }))
  .stage("make", { isolate: "process", retry: { attempts: 3, delay: 1 } }, ({ cost }) => {
    cost({ usd: 1 });
    return { pages: [new Date(0)] };
  });

/** The success is recorded by another process. */
export const committing = pipeline("committing", { module: import.meta.url })
  .source(items(() => ["a"], { id: (id) => id }))
  .stage("write", { isolate: "process", retry: { attempts: 1 } }, ({ commit }) => commit(() => {}));
