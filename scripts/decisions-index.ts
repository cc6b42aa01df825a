import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "./bundle.ts";
import { generatedBy } from "./source.ts";

/** docs/decisions/README.md, from the titles of the pages beside it. */
export function decisionsIndex(): string {
  const folder = join(ROOT, "docs/decisions");
  const pages = readdirSync(folder).filter((name) => /^\d{3}-.*\.md$/.test(name));
  const lines = pages.toSorted().map((name) => {
    const [, number, title] = /^# (\d{3}) (.*)$/m.exec(readFileSync(join(folder, name), "utf8")) ?? [];
    return `- ${number} [${title}](${name})`;
  });
  return [
    generatedBy("scripts/decisions-index.ts"),
    "",
    "# Decisions",
    "",
    "The hard choices, at most 300 words each: the decision, why, what was given up, what it costs, the tests. A better idea",
    "gets a page of its own that names the one it replaces. Missing numbers were merged into others.",
    "",
    ...lines,
    "",
  ].join("\n");
}
