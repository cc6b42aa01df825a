import { stripVTControlCharacters } from "node:util";

/** A letter is a cell in these, and the next one never joins it. */
const PLAIN = /^[ -~\u00a1-\u00ac\u00ae-\u00ff\u2010-\u2027]*$/;
/** Made when a text needs it: to know about all languages costs a short command more than its tables. */
let segmenter: Intl.Segmenter | undefined;
/** East Asian wide letters, and symbols that terminals draw two cells wide. */
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u;

/** Characters that change the direction of the text after them, and so what a reader takes it for. */
const BIDI_CONTROLS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Removes what jobs carry and a terminal would obey: escape sequences, control characters, changes of direction. */
export function printable(text: string): string {
  const plain = stripVTControlCharacters(text).replace(BIDI_CONTROLS, "");
  // oxlint-disable-next-line no-control-regex
  return plain.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, "");
}

/** The same on one line. */
export function oneLine(text: string): string {
  return printable(text.replace(/\s+/g, " ")).trim();
}

/** In cells of a terminal. */
export function widthOf(text: string): number {
  if (PLAIN.test(text)) return text.length;
  let width = 0;
  for (const segment of graphemes(text)) width += WIDE.test(segment) ? 2 : 1;
  return width;
}

/** At most this wide, with … where something is missing. */
export function cut(text: string, width: number): string {
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
