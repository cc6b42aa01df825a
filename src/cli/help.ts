/** The end of a help text. */
export function examples(...lines: string[]): string {
  return `\nExample:\n${lines.map((line) => `  ${line}`).join("\n")}`;
}
