import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import type { TestEvent } from "node:test/reporters";

/**
 * A reporter (`--test-reporter=./test/times.ts`): what each file took, the dearest first, and what failed in it. Where the
 * system says so it is seconds of the processors, which are the same whatever else runs, and then those of the clock. With
 * `HOLDFAST_TIMES=5` also its five longest tests.
 */
const folder = mkdtempSync(join(tmpdir(), "holdfast-times-"));
// Every test file adds itself, at its end: see `cpu.ts`.
const taken = (process.env["HOLDFAST_TEST_CPU"] = join(folder, "taken"));

export default async function* times(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  const most = Number(process.env["HOLDFAST_TIMES"] ?? 0);
  const tests = new Map<string, { name: string; millis: number }[]>();
  const files: { file: string; millis: number; count: number }[] = [];
  for await (const { type, data } of events) {
    if (type === "test:fail") yield `failed: ${data.name} (${data.file ?? "no file"})\n`;
    if (type === "test:pass" || type === "test:fail") {
      if (data.file === undefined || data.details.type === "suite") continue;
      const known = tests.get(data.file) ?? [];
      tests.set(data.file, known);
      known.push({ name: data.name, millis: data.details.duration_ms });
    } else if (type === "test:summary" && data.file !== undefined) {
      files.push({ file: data.file, millis: data.duration_ms, count: data.counts.tests });
    }
  }
  const worked = new Map<string, number>(existsSync(taken) ? readLines(taken) : []);
  rmSync(folder, { recursive: true, force: true });
  const cost = ({ file, millis }: { file: string; millis: number }) => worked.get(file) ?? millis;
  for (const one of files.toSorted((a, b) => cost(b) - cost(a))) {
    const { file, millis, count } = one;
    yield `${seconds(cost(one))} ${seconds(millis)}  ${relative(process.cwd(), file)} (${count} tests)\n`;
    const longest = (tests.get(file) ?? []).toSorted((a, b) => b.millis - a.millis).slice(0, most);
    for (const { name, millis } of longest) yield `        ${seconds(millis)}  ${name}\n`;
  }
  const sum = (of: (one: (typeof files)[number]) => number) => seconds(files.reduce((all, one) => all + of(one), 0));
  yield `${sum(cost)} ${sum(({ millis }) => millis)}  all files together\n`;
}

function readLines(path: string): [file: string, millis: number][] {
  const lines = readFileSync(path, "utf8").trimEnd().split("\n");
  return lines.map((line) => JSON.parse(line) as [string, number]);
}

function seconds(millis: number): string {
  return `${(millis / 1_000).toFixed(1)} s`.padStart(8);
}
