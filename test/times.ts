import { relative } from "node:path";
import type { TestEvent } from "node:test/reporters";

/**
 * A reporter (`--test-reporter=./test/times.ts`): how long each file took, the longest first, and what failed in it. With
 * `HOLDFAST_TIMES=5` also its five longest tests.
 */
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
  for (const { file, millis, count } of files.toSorted((a, b) => b.millis - a.millis)) {
    yield `${seconds(millis)}  ${relative(process.cwd(), file)} (${count} tests)\n`;
    const longest = (tests.get(file) ?? []).toSorted((a, b) => b.millis - a.millis).slice(0, most);
    for (const { name, millis } of longest) yield `        ${seconds(millis)}  ${name}\n`;
  }
  yield `${seconds(files.reduce((sum, { millis }) => sum + millis, 0))}  all files together\n`;
}

function seconds(millis: number): string {
  return `${(millis / 1_000).toFixed(1)} s`.padStart(8);
}
