import { number } from "../../core/words.ts";
import { paint, type Style } from "./colours.ts";
import { cut, oneLine, widthOf } from "./text.ts";

export interface Column<Row> {
  title: string;
  value: (row: Row) => string;
  right?: boolean;
  style?: (row: Row) => Style | null;
  /** Gives way when the terminal is narrow, down to this width. */
  least?: number;
  /** Left out when the terminal is too narrow for all columns at their least widths; the last such column goes first. */
  optional?: boolean;
}

const GAP = 2;

/** How many; nothing stands back. */
export function count<Row>(
  title: string,
  of: (row: Row) => number,
  style: Style | null | ((row: Row) => Style | null) = null,
): Column<Row> {
  return {
    title,
    right: true,
    value: (row) => number(of(row)),
    style: (row) => (of(row) === 0 ? "dim" : typeof style === "function" ? style(row) : style),
  };
}

/** Lines up columns. In a pipe nothing is cut: programs read it. */
export function table<Row>(given: readonly Column<Row>[], rows: readonly Row[], room = terminalWidth()): string {
  const columns = fitting(given, rows, room);
  const cells = rows.map((row) => columns.map((column) => oneLine(column.value(row))));
  const wanted = columns.map((column, i) => Math.max(widthOf(column.title), ...cells.map((line) => widthOf(line[i] as string))));
  const widths = fit(columns, wanted, room);
  const line = (texts: readonly string[], styleOf: (column: Column<Row>) => Style | null) =>
    columns.map((column, i) => cell(texts[i] as string, widths[i] as number, column, styleOf(column), i)).join(" ".repeat(GAP));
  const head = line(
    columns.map(({ title }) => title),
    () => "dim",
  );
  const body = cells.map((texts, i) => line(texts, (column) => column.style?.(rows[i] as Row) ?? null));
  return [head, ...body].map((text) => text.trimEnd()).join("\n");

  function cell(text: string, width: number, column: Column<Row>, style: Style | null, at: number): string {
    const short = cut(text, width);
    const blank = " ".repeat(width - widthOf(short));
    const painted = short === "" ? "" : paint(style, short);
    if (column.right) return blank + painted;
    return at === columns.length - 1 ? painted : painted + blank;
  }
}

/** The columns that fit side by side at their least widths. */
function fitting<Row>(columns: readonly Column<Row>[], rows: readonly Row[], room: number): readonly Column<Row>[] {
  const leastWidth = ({ title, value, least }: Column<Row>) => {
    const wanted = Math.max(widthOf(title), ...rows.map((row) => widthOf(oneLine(value(row)))));
    return Math.min(wanted, least ?? wanted);
  };
  const total = columns.reduce((sum, column) => sum + leastWidth(column) + GAP, -GAP);
  const last = columns.findLastIndex(({ optional }) => optional === true);
  return total <= room || last === -1 ? columns : fitting(columns.toSpliced(last, 1), rows, room);
}

/** The widest that may shrink gives way first. */
function fit<Row>(columns: readonly Column<Row>[], wanted: readonly number[], room: number): number[] {
  const widths = [...wanted];
  let excess = widths.reduce((sum, width) => sum + width + GAP, -GAP) - room;
  while (excess > 0) {
    let widest = -1;
    for (const [i, { least }] of columns.entries()) {
      const width = widths[i] as number;
      if (least !== undefined && width > least && width > (widths[widest] ?? 0)) widest = i;
    }
    if (widest === -1) break;
    widths[widest] = (widths[widest] as number) - 1;
    excess--;
  }
  return widths;
}

/** A terminal that nobody gave a size says 0. */
export function terminalWidth(): number {
  const { columns } = process.stdout;
  return columns === undefined ? Number.POSITIVE_INFINITY : columns || 80;
}
