import { globSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";

export const ROOT = resolve(import.meta.dirname, "../..");

export interface Page {
  /** From the root of the repository. */
  path: string;
  text: string;
}

/** Everything that is written for people to read. */
export function pages(): Page[] {
  return globSync(["*.md", "docs/**/*.md"], { cwd: ROOT })
    .sort()
    .map((path) => ({ path, text: readFileSync(join(ROOT, path), "utf8") }));
}

export function page(path: string): Page {
  return { path, text: readFileSync(join(ROOT, path), "utf8") };
}

/** Whether a script in `scripts/` makes the page. */
export function isGenerated(text: string): boolean {
  return text.startsWith("<!-- Generated from ");
}

export interface Snippet {
  /** The page and the line it starts at. */
  where: string;
  /** What follows the three backticks. */
  info: string;
  code: string;
}

export function snippets({ path, text }: Page): Snippet[] {
  const found: Snippet[] = [];
  for (const match of text.matchAll(/^```([^\n]*)\n([\s\S]*?)^```$/gm)) {
    const line = text.slice(0, match.index).split("\n").length;
    found.push({ where: `${path}:${line}`, info: (match[1] as string).trim(), code: match[2] as string });
  }
  return found;
}
