import type { WriteStream } from "node:tty";

const ESC = "\u001b[";
/** No cursor, and long lines cut instead of wrapped: a wrapped line would be two to go up by. */
const CUT = `${ESC}?7l`;
const WRAP = `${ESC}?7h`;
const TAKE = `${ESC}?25l${CUT}`;
const GIVE_BACK = `${WRAP}${ESC}?25h`;

/**
 * Some lines at the bottom of a terminal that are drawn again in place. What is written meanwhile stands above them, also what
 * a handler writes with console.log.
 */
export class LiveBlock implements Disposable {
  readonly #stream: WriteStream;
  #lines: string[] = [];
  #taken = false;
  /** How to write where a drawing is: past whoever looks what others write. */
  #write: (text: string) => void;
  #free: (() => void)[] = [];

  constructor(stream: WriteStream) {
    this.#stream = stream;
    this.#write = (text) => void stream.write(text);
  }

  draw(text: string): void {
    if (!this.#taken) {
      this.#taken = true;
      process.once("exit", this.#giveBack);
      this.#watch();
      this.#write(TAKE);
    }
    const erase = this.#erased();
    this.#lines = this.#fit(text.split("\n"));
    this.#write(`${erase}${this.#block()}`);
  }

  /** Above the block, for good and in whole. */
  write(text: string): void {
    this.#above(() => this.#write(`${text}\n`));
  }

  /** As if it had never been there. */
  clear(): void {
    this.#write(this.#erased());
    this.#lines = [];
    this.#giveBack();
  }

  [Symbol.dispose](): void {
    this.#giveBack();
  }

  #above(act: () => void): void {
    const [wrap, cut] = this.#taken ? [WRAP, CUT] : ["", ""];
    this.#write(`${this.#erased()}${wrap}`);
    act();
    this.#write(`${cut}${this.#block()}`);
  }

  #block(): string {
    return this.#lines.map((line) => `${line}\n`).join("");
  }

  /** What others write to this terminal. */
  #watch(): void {
    const own = this.#stream.write.bind(this.#stream);
    this.#write = (text) => void own(text);
    for (const stream of [this.#stream, process.stderr]) {
      if (!stream.isTTY) continue;
      const write = stream.write.bind(stream) as (...given: unknown[]) => boolean;
      const watched = (...given: unknown[]): boolean => {
        let answer = true;
        this.#above(() => {
          answer = write(...given);
          // A line that is not ended would be drawn over.
          if (!endsLine(given[0])) own("\n");
        });
        return answer;
      };
      stream.write = watched as typeof stream.write;
      this.#free.push(() => void Reflect.deleteProperty(stream, "write"));
    }
  }

  /** Up to its first line, and nothing from there on. */
  #erased(): string {
    return this.#lines.length === 0 ? "" : `${ESC}${this.#lines.length}A\r${ESC}0J`;
  }

  readonly #giveBack = (): void => {
    if (!this.#taken) return;
    this.#taken = false;
    process.off("exit", this.#giveBack);
    for (const free of this.#free.splice(0)) free();
    this.#write(GIVE_BACK);
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

function endsLine(chunk: unknown): boolean {
  return chunk instanceof Uint8Array ? chunk.at(-1) === 10 : String(chunk).endsWith("\n");
}
