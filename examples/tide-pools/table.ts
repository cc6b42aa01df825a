import { styleText } from "node:util";

export function dollars(usd: number): string {
  return `$${usd.toFixed(3)}`;
}

export function heading(text: string): void {
  console.log(`\n${styleText("bold", text)}`);
}

export function line(what: string, value: string, note: string): void {
  console.log(`  ${what.padEnd(24)}${value.padStart(11)}  ${styleText("gray", note)}`.trimEnd());
}

/** Prints whether something holds, and returns it. */
export function verdict(what: string, holds: boolean, value: string): boolean {
  console.log(
    `  ${holds ? styleText("green", "✔") : styleText("red", "✘")} ${what}: ${styleText(holds ? "green" : "red", value)}`,
  );
  return holds;
}
