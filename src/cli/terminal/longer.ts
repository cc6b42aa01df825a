import { LiveBlock } from "./live.ts";

/** What takes less is not worth a word, in milliseconds. */
const PATIENCE = 1_000;
/** Between two lines in a log. */
const PAUSE = 5_000;

/** How far something is that takes long, on standard error: one line in place on a terminal, now and then one in a log. */
export class Longer implements Disposable {
  readonly #since = performance.now();
  readonly #block = process.stderr.isTTY ? new LiveBlock(process.stderr) : null;
  #said = Number.NEGATIVE_INFINITY;

  tell(text: string): void {
    const now = performance.now();
    if (now - this.#since < PATIENCE) return;
    if (this.#block !== null) return this.#block.draw(text);
    if (now - this.#said < PAUSE) return;
    this.#said = now;
    process.stderr.write(`${text}\n`);
  }

  [Symbol.dispose](): void {
    this.#block?.clear();
  }
}
