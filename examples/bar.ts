import { styleText } from "node:util";

const WIDTH = 40;

/** A progress bar on a terminal; elsewhere a line whenever another `step` percent are done. */
export class Bar {
  readonly #total: number;
  readonly #step: number;
  #steps = -1;

  constructor(total: number, step = 10) {
    this.#total = total;
    this.#step = step;
  }

  show(done: number, note: string, always = false): void {
    const fraction = Math.min(1, done / this.#total);
    const percent = `${Math.floor(fraction * 100)}%`.padStart(4);
    if (process.stdout.isTTY) {
      const full = Math.round(fraction * WIDTH);
      const bar = styleText("green", "█".repeat(full)) + styleText("gray", "░".repeat(WIDTH - full));
      process.stdout.write(`\r\u001b[K${bar} ${percent}  ${note}`);
    } else if (always || Math.floor((fraction * 100) / this.#step) > this.#steps) {
      this.#steps = Math.floor((fraction * 100) / this.#step);
      process.stdout.write(`${percent}  ${note}\n`);
    }
  }

  /** Shows a last note in any case. */
  end(done?: number, note = ""): void {
    if (done !== undefined) this.show(done, note, true);
    if (process.stdout.isTTY) process.stdout.write("\n");
  }
}
