import { UNCOVERED } from "../test/damage/uncovered.ts";
import { generatedBy } from "./source.ts";

/** docs/unchecked-columns.md, from the list that test/damage holds the checks to. */
export function uncheckedColumns(): string {
  const rows = Object.entries(UNCOVERED).map(
    ([table, columns]) => `| \`${table}\` | ${columns.map((one) => `\`${one}\``).join(", ")} |`,
  );
  return [
    generatedBy("scripts/unchecked-columns.ts"),
    "",
    "# Columns without a checksum",
    "",
    "A flipped bit in these columns of a SQLite file is found only if it breaks a page, an index or a constraint: they change",
    "while a row lives. [guarantees.md](guarantees.md) says what is checked; `test/damage/columns.test.ts` tries every column.",
    "",
    "| table | columns |",
    "|---|---|",
    ...rows,
    "",
  ].join("\n");
}
