import type { WriteStream } from "node:tty";

const ESC = "\u001b[";
/** No cursor, and long lines cut instead of wrapped: a wrapped line would be two to go up by. */
const CUT = `${ESC}?7l`;
const WRAP = `${ESC}?7h`;
const TAKE = `${ESC}?25l${CUT}`;
const GIVE_BACK = `${WRAP}${ESC}?25h`;

/** Some lines at the bottom of a terminal that are drawn again in place; what is written meanwhile stands above them. */
export class LiveBlock implements Disposable {
  readonly #stream: WriteStream;
  #lines: string[] = [];
  #taken = false;

  constructor(stream: WriteStream) {
    this.#stream = stream;
  }

  draw(text: string): void {
    if (!this.#taken) {
      this.#taken = true;
      process.once("exit", this.#giveBack);
      this.#stream.write(TAKE);
    }
    const erase = this.#erased();
    this.#lines = this.#fit(text.split("\n"));
    this.#stream.write(`${erase}${this.#lines.map((line) => `${line}\n`).join("")}`);
  }

  /** Above the block, for good and in whole. */
  write(text: string): void {
    const block = this.#lines.map((line) => `${line}\n`).join("");
    const [wrap, cut] = this.#taken ? [WRAP, CUT] : ["", ""];
    this.#stream.write(`${this.#erased()}${wrap}${text}\n${cut}${block}`);
  }

  /** As if it had never been there. */
  clear(): void {
    this.#stream.write(this.#erased());
    this.#lines = [];
    this.#giveBack();
  }

  [Symbol.dispose](): void {
    this.#giveBack();
  }

  /** Up to its first line, and nothing from there on. */
  #erased(): string {
    return this.#lines.length === 0 ? "" : `${ESC}${this.#lines.length}A\r${ESC}0J`;
  }

  readonly #giveBack = (): void => {
    if (!this.#taken) return;
    this.#taken = false;
    process.off("exit", this.#giveBack);
    this.#stream.write(GIVE_BACK);
  };

  /** What has scrolled off the top cannot be drawn again. */
  #fit(lines: string[]): string[] {
    const rows = this.#stream.rows || lines.length + 1;
    if (lines.length < rows) return lines;
    // The last line says how it goes in all.
    const room = Math.max(1, rows - 3);
    return [...lines.slice(0, room), `… ${lines.length - room - 1} more lines`, ...lines.slice(-1)];
  }
}
