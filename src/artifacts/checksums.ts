/**
 * A line that `sha256sum -c` reads. A name with a backslash or a line break in it is escaped, and the line starts with a
 * backslash then; `-` alone would be standard input.
 */
export function checksumLine(hash: string, name: string): string {
  const plain = name === "-" ? "./-" : name;
  const escaped = plain.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\r", "\\r");
  return `${escaped === plain ? "" : "\\"}${hash}  ${escaped}\n`;
}
