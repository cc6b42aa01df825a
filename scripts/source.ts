import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseSync } from "rolldown/utils";
import { ROOT } from "./bundle.ts";

/** A node of the syntax tree, as ESTree names its parts. */
export interface Node {
  type: string;
  start: number;
  end: number;
  [part: string]: unknown;
}

/** A parsed file of `src/`. */
export interface SourceFile {
  path: string;
  text: string;
  body: Node[];
  /** Doc comments by the position where they end. */
  docs: Map<number, string>;
}

/** The first line of a page that a script makes. */
export function generatedBy(script: string): string {
  return `<!-- Generated from src/ by ${script}: run \`npm run docs\`, do not edit. -->`;
}

/** A text as the cell of a table. */
export function cell(text: string): string {
  return text.replaceAll("|", "\\|").replaceAll(/\s+/g, " ");
}

export function parseSources(...globs: string[]): SourceFile[] {
  return globSync(globs, { cwd: ROOT })
    .sort()
    .map((path) => {
      const text = readFileSync(join(ROOT, path), "utf8");
      const { program, comments, errors } = parseSync(path, text);
      if (errors.length > 0) throw new Error(`${path} does not parse: ${errors[0]?.message}`);
      const docs = comments
        .filter(({ value }) => value.startsWith("*"))
        .map(({ value, end }): [number, string] => [end, docText(value)]);
      return { path: path.replaceAll("\\", "/"), text, body: program.body as unknown as Node[], docs: new Map(docs) };
    });
}

/** The text of the doc comment in front of a node, in one line; "" if it has none. */
export function docOf({ text, docs }: SourceFile, { start }: Node): string {
  return docs.get(text.slice(0, start).trimEnd().length) ?? "";
}

function docText(comment: string): string {
  return comment.replaceAll(/^\*|\s*\n\s*\*?\s*/g, " ").trim();
}

/** Calls `visit` with a node and all nodes below it, the outer ones first. */
export function walk(node: unknown, visit: (node: Node) => void): void {
  if (typeof node !== "object" || node === null) return;
  if (typeof (node as Node).type === "string") visit(node as Node);
  for (const part of Object.values(node)) walk(part, visit);
}
