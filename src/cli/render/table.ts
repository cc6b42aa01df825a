import { stripVTControlCharacters, styleText } from "node:util";
import type { BuildState } from "../../core/pipelines/build.ts";
import type { JobState } from "../../core/jobs/job.ts";
import { numberText } from "../../core/text/text.ts";

export interface Column<Row> {
  title: string;
  value: (row: Row) => string;
  right?: boolean;
  style?: (row: Row) => Style | null;
  /** The column shrinks down to this width on a narrow terminal. */
  least?: number;
  /** The column is left out if the columns do not fit at their least widths; the last optional column goes first. */
  optional?: boolean;
}

const GAP = 2;

export function count<Row>(
  title: string,
  of: (row: Row) => number,
  style: Style | null | ((row: Row) => Style | null) = null,
): Column<Row> {
  return {
    title,
    right: true,
    value: (row) => numberText(of(row)),
    style: (row) => (of(row) === 0 ? "dim" : typeof style === "function" ? style(row) : style),
  };
}

/** Aligns columns. In a pipe the table keeps its full width, because programs read it. */
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
    const short = truncate(text, width);
    const blank = " ".repeat(width - widthOf(short));
    const painted = short === "" ? "" : paint(style, short);
    if (column.right) return blank + painted;
    return at === columns.length - 1 ? painted : painted + blank;
  }
}

export function tableOr<Row>(note: string, columns: readonly Column<Row>[], rows: readonly Row[]): string {
  return rows.length === 0 ? paint("dim", note) : table(columns, rows);
}

export function labelled(entries: readonly (readonly [label: string, value: string | undefined])[], width = 10): string {
  const lines = entries.flatMap(([label, value]) => (value === undefined ? [] : `${paint("dim", label.padEnd(width))}${value}`));
  return lines.join("\n");
}

function fitting<Row>(columns: readonly Column<Row>[], rows: readonly Row[], room: number): readonly Column<Row>[] {
  const leastWidth = ({ title, value, least }: Column<Row>) => {
    const wanted = Math.max(widthOf(title), ...rows.map((row) => widthOf(oneLine(value(row)))));
    return Math.min(wanted, least ?? wanted);
  };
  const total = columns.reduce((sum, column) => sum + leastWidth(column) + GAP, -GAP);
  const last = columns.findLastIndex(({ optional }) => optional === true);
  return total <= room || last === -1 ? columns : fitting(columns.toSpliced(last, 1), rows, room);
}

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

/** Returns the width of standard output: unlimited for a pipe, and 80 for a terminal that reports 0. */
export function terminalWidth(): number {
  const { columns } = process.stdout;
  return columns === undefined ? Number.POSITIVE_INFINITY : columns || 80;
}

const PLAIN = /^[ -~\u00a1-\u00ac\u00ae-\u00ff\u2010-\u2027]*$/;
/** Created on first use, because its construction takes longer than a short command's tables. */
let segmenter: Intl.Segmenter | undefined;
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u;

/** Characters that change the direction of the following text, and so can disguise it. */
const BIDI_CONTROLS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Removes what a terminal would interpret: escape sequences, control characters, and changes of direction. */
export function printable(text: string): string {
  const plain = stripVTControlCharacters(text).replace(BIDI_CONTROLS, "");
  // oxlint-disable-next-line no-control-regex
  return plain.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "");
}

export function oneLine(text: string): string {
  return printable(text.replace(/\s+/g, " ")).trim();
}

export function widthOf(text: string): number {
  if (PLAIN.test(text)) return text.length;
  let width = 0;
  for (const segment of graphemes(text)) width += WIDE.test(segment) ? 2 : 1;
  return width;
}

export function truncate(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let kept = "";
  let room = width - 1;
  for (const segment of graphemes(text)) {
    room -= WIDE.test(segment) ? 2 : 1;
    if (room < 0) break;
    kept += segment;
  }
  return `${kept.trimEnd()}…`;
}

function graphemes(text: string): Iterable<string> {
  if (PLAIN.test(text)) return text;
  segmenter ??= new Intl.Segmenter(undefined, { granularity: "grapheme" });
  return Array.from(segmenter.segment(text), ({ segment }) => segment);
}

export type Style = Parameters<typeof styleText>[0];

export function paint(style: Style | null, text: string, stream: NodeJS.WriteStream = process.stdout): string {
  return style === null ? text : styleText(style, text, { stream });
}

export const JOB_STYLES: Record<JobState, Style | null> = {
  waiting: "dim",
  pending: null,
  running: "cyan",
  succeeded: "green",
  failed: "yellow",
  cancelled: "dim",
  quarantined: "red",
};

export const BUILD_STYLES: Record<BuildState, Style | null> = {
  PENDING: null,
  ACTIVE: "cyan",
  SUCCESS: "green",
  FAILED: "red",
  CRASHED: "yellow",
  BUDGET_PAUSE: "yellow",
  ABANDONED: "dim",
};

/** Shows a build that an operator stopped as "stopped", although its state is CRASHED. */
export function buildStateText({ state, reason }: { state: BuildState; reason: string }): string {
  return state === "CRASHED" && reason === "stopped" ? "stopped" : state;
}
