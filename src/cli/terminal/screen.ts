import type { WriteStream } from "node:tty";

const ESC = "\u001b[";
/** The other screen, no cursor, and long lines cut instead of wrapped; and back. */
const TAKE = `${ESC}?1049h${ESC}?25l${ESC}?7l`;
const GIVE_BACK = `${ESC}?7h${ESC}?25h${ESC}?1049l`;

/** The whole terminal, as long as something is watched. What was there before comes back with the end, however it comes. */
export class Screen implements Disposable {
  readonly #stream: WriteStream;
  #draw: () => string = () => "";
  #taken = true;

  /** Whether there is a terminal that can be drawn on. */
  static fits(stream: NodeJS.WriteStream): stream is WriteStream {
    return stream.isTTY === true && process.env["TERM"] !== "dumb";
  }

  static take(stream: WriteStream): Screen {
    return new Screen(stream);
  }

  private constructor(stream: WriteStream) {
    this.#stream = stream;
    stream.write(TAKE);
    stream.on("resize", this.#redraw);
    process.once("exit", this.#giveBack);
  }

  /** Drawn again when the terminal changes its size: the text is asked for, not given. */
  draw(text: () => string): void {
    this.#draw = text;
    this.#redraw();
  }

  [Symbol.dispose](): void {
    this.#stream.off("resize", this.#redraw);
    process.off("exit", this.#giveBack);
    this.#giveBack();
  }

  readonly #redraw = (): void => {
    const lines = this.#fit(this.#draw().split("\n"));
    // Line by line over what is there, in one write: clearing it all first would flicker. Each is cleared before it is
    // written, since behind a full line the cursor still stands on its last letter.
    this.#stream.write(`${ESC}H${lines.map((line) => `${ESC}2K${line}`).join("\r\n")}${ESC}0J`);
  };

  readonly #giveBack = (): void => {
    if (!this.#taken) return;
    this.#taken = false;
    this.#stream.write(GIVE_BACK);
  };

  #fit(lines: string[]): string[] {
    // A terminal that nobody gave a size says 0: then it gets everything.
    const rows = this.#stream.rows || lines.length;
    if (lines.length <= rows) return lines;
    return [...lines.slice(0, rows - 1), `… ${lines.length - rows + 1} more lines`];
  }
}
