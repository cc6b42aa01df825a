import type { WriteStream } from "node:tty";
import { bytesText, numberText } from "../../core/text/text.ts";
import type { Progress } from "../../store/backups.ts";

const ESC = "\u001b[";
/** Turns off wrapping, because the block counts lines to move the cursor up. */
const NO_WRAP = `${ESC}?7l`;
const WRAP = `${ESC}?7h`;
const BEGIN_BLOCK = `${ESC}?25l${NO_WRAP}`;
const END_BLOCK = `${WRAP}${ESC}?25h`;

/** Lines at the bottom of a terminal that are redrawn in place. Other output, also that of handlers, goes above them. */
export class LiveBlock implements Disposable {
  readonly #stream: WriteStream;
  #lines: string[] = [];
  #taken = false;
  /** Writes without moving the block, unlike the patched `stream.write`. */
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
      this.#write(BEGIN_BLOCK);
    }
    const erase = this.#erased();
    this.#lines = this.#fit(text.split("\n"));
    this.#write(`${erase}${this.#block()}`);
  }

  write(text: string): void {
    this.#above(() => this.#write(`${text}\n`));
  }

  clear(): void {
    this.#write(this.#erased());
    this.#lines = [];
    this.#giveBack();
  }

  [Symbol.dispose](): void {
    this.#giveBack();
  }

  #above(act: () => void): void {
    const [wrap, cut] = this.#taken ? [WRAP, NO_WRAP] : ["", ""];
    this.#write(`${this.#erased()}${wrap}`);
    act();
    this.#write(`${cut}${this.#block()}`);
  }

  #block(): string {
    return this.#lines.map((line) => `${line}\n`).join("");
  }

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
          // The block would overwrite an unfinished line.
          if (!endsLine(given[0])) own("\n");
        });
        return answer;
      };
      stream.write = watched as typeof stream.write;
      this.#free.push(() => void Reflect.deleteProperty(stream, "write"));
    }
  }

  #erased(): string {
    return this.#lines.length === 0 ? "" : `${ESC}${this.#lines.length}A\r${ESC}0J`;
  }

  readonly #giveBack = (): void => {
    if (!this.#taken) return;
    this.#taken = false;
    process.off("exit", this.#giveBack);
    for (const free of this.#free.splice(0)) free();
    this.#write(END_BLOCK);
  };

  /** Cuts the block to the height of the terminal: lines that have scrolled off the top cannot be redrawn. */
  #fit(lines: string[]): string[] {
    const rows = this.#stream.rows || lines.length + 1;
    if (lines.length < rows) return lines;
    const room = Math.max(1, rows - 3);
    return [...lines.slice(0, room), `… ${lines.length - room - 1} more lines`, ...lines.slice(-1)];
  }
}

function endsLine(chunk: unknown): boolean {
  return chunk instanceof Uint8Array ? chunk.at(-1) === 10 : String(chunk).endsWith("\n");
}

const ENTER_SCREEN = `${ESC}?1049h${ESC}?25l${ESC}?7l`;
const LEAVE_SCREEN = `${ESC}?7h${ESC}?25h${ESC}?1049l`;

/** Fills the whole terminal while a command watches something. The former content returns on disposal and on exit. */
export class Screen implements Disposable {
  readonly #stream: WriteStream;
  #draw: () => string = () => "";
  #taken = true;

  static fits(stream: NodeJS.WriteStream): stream is WriteStream {
    return stream.isTTY === true && process.env["TERM"] !== "dumb";
  }

  static take(stream: WriteStream): Screen {
    return new Screen(stream);
  }

  private constructor(stream: WriteStream) {
    this.#stream = stream;
    stream.write(ENTER_SCREEN);
    stream.on("resize", this.#redraw);
    process.once("exit", this.#giveBack);
  }

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
    // Write once, because clearing the screen flickers. Clear before the text: after a full line the cursor is on its last cell.
    this.#stream.write(`${ESC}H${lines.map((line) => `${ESC}2K${line}`).join("\r\n")}${ESC}0J`);
  };

  readonly #giveBack = (): void => {
    if (!this.#taken) return;
    this.#taken = false;
    this.#stream.write(LEAVE_SCREEN);
  };

  #fit(lines: string[]): string[] {
    // Some terminals report 0 rows, so everything is drawn.
    const rows = this.#stream.rows || lines.length;
    if (lines.length <= rows) return lines;
    return [...lines.slice(0, rows - 1), `… ${lines.length - rows + 1} more lines`];
  }
}

const NOTICE_AFTER_MS = 1_000;
const NOTICE_INTERVAL_MS = 5_000;

/** Shows the progress of slow work on standard error: one line in place on a terminal, a line now and then in a log. */
export async function withProgress<T>(work: (onProgress: (progress: Progress) => void) => Promise<T>): Promise<T> {
  const since = performance.now();
  const block = process.stderr.isTTY ? new LiveBlock(process.stderr) : null;
  let shownAt = Number.NEGATIVE_INFINITY;
  try {
    return await work((progress) => {
      const now = performance.now();
      if (now - since < NOTICE_AFTER_MS) return;
      if (block !== null) return block.draw(progressText(progress));
      if (now - shownAt < NOTICE_INTERVAL_MS) return;
      shownAt = now;
      process.stderr.write(`${progressText(progress)}\n`);
    });
  } finally {
    block?.clear();
  }
}

function progressText({ step, done, total }: Progress): string {
  if (step === "checking") return "checking …";
  const share = total === 0 ? 100 : Math.min(100, Math.floor((done / total) * 100));
  const of =
    step === "artifacts" || step === "replaying"
      ? `${numberText(done)} of ${numberText(total)}`
      : `${bytesText(done)} of ${bytesText(total)}`;
  return `${step} ${share} % (${of})`;
}
