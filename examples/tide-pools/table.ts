import { styleText } from "node:util";

export function dollars(usd: number): string {
  return `$${usd.toFixed(6)}`;
}

export function heading(text: string): void {
  console.log(`\n${styleText("bold", text)}`);
}

export function line(what: string, value: string, note: string): void {
  console.log(`  ${what.padEnd(24)}${value.padStart(11)}  ${styleText("gray", note)}`.trimEnd());
}

/** A line that says whether something is as it has to be. Answers whether it is. */
export function verdict(what: string, holds: boolean, value: string): boolean {
  console.log(
    `  ${holds ? styleText("green", "✔") : styleText("red", "✘")} ${what}: ${styleText(holds ? "green" : "red", value)}`,
  );
  return holds;
}
