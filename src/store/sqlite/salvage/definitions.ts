import type { Datum } from "./cells.ts";
import { pageOf } from "./cells.ts";
import { KIND, type Pages } from "./pages.ts";
import { type FoundRow, readTable, rowsOn } from "./trees.ts";

/** What the schema says of a table, an index, a trigger or a view. */
export interface Definition {
  type: string;
  name: string;
  table: string;
  /** 0: it has no tree. */
  root: number;
  sql: string | null;
}

const TYPES = new Set(["table", "index", "trigger", "view"]);

/** The schema, as far as it can be read; where its tree cannot be followed, whatever looks like a part of it. */
export function readDefinitions(pages: Pages): { definitions: Definition[]; whole: boolean } {
  const found = new Map<string, Definition>();
  let whole = pages.hasHeader;
  const take = ({ values }: FoundRow) => {
    const definition = toDefinition(values, pages.count);
    if (definition === null) whole = false;
    else if (!found.has(definition.name)) found.set(definition.name, definition);
  };
  const root = pageOf(pages, 1);
  if (root === null) whole = false;
  else readTable(pages, 1, take, () => (whole = false));
  pages.claim(1);
  if (whole) return { definitions: [...found.values()], whole };
  for (const number of pages.unclaimed()) {
    const page = pageOf(pages, number);
    if (page?.kind !== KIND.leafTable || page.cells.length === 0) continue;
    const rows = rowsOn(pages, page);
    if (rows.length === 0 || !rows.every(({ values }) => toDefinition(values, pages.count) !== null)) continue;
    pages.claim(number);
    rows.forEach(take);
  }
  return { definitions: [...found.values()], whole };
}

function toDefinition(values: readonly Datum[], pages: number): Definition | null {
  if (values.length !== 5) return null;
  const [type, name, table, root, sql] = values;
  if (typeof type !== "string" || !TYPES.has(type) || typeof name !== "string" || typeof table !== "string") return null;
  if (root !== null && (typeof root !== "bigint" || root < 0n || root > BigInt(pages))) return null;
  if (sql !== null && (typeof sql !== "string" || !/^create\s/i.test(sql))) return null;
  return { type, name, table, root: Number(root ?? 0n), sql };
}
