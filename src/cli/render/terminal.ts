import type { WriteStream } from "node:tty";
import { bytes, number } from "../../core/words.ts";
import type { Progress } from "../../store/backups.ts";

const ESC = "\u001b[";
/** No cursor, and long lines cut instead of wrapped: a wrapped line would be two to go up by. */
const NO_WRAP = `${ESC}?7l`;
const WRAP = `${ESC}?7h`;
const BEGIN_BLOCK = `${ESC}?25l${NO_WRAP}`;
const END_BLOCK = `${WRAP}${ESC}?25h`;

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
      this.#write(BEGIN_BLOCK);
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
    const [wrap, cut] = this.#taken ? [WRAP, NO_WRAP] : ["", ""];
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
    this.#write(END_BLOCK);
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

/** The other screen, no cursor, and long lines cut instead of wrapped; and back. */
const ENTER_SCREEN = `${ESC}?1049h${ESC}?25l${ESC}?7l`;
const LEAVE_SCREEN = `${ESC}?7h${ESC}?25h${ESC}?1049l`;

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
    stream.write(ENTER_SCREEN);
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
    this.#stream.write(LEAVE_SCREEN);
  };

  #fit(lines: string[]): string[] {
    // A terminal that nobody gave a size says 0: then it gets everything.
    const rows = this.#stream.rows || lines.length;
    if (lines.length <= rows) return lines;
    return [...lines.slice(0, rows - 1), `… ${lines.length - rows + 1} more lines`];
  }
}

/** What takes less is not worth a word, in milliseconds. */
const NOTICE_AFTER_MS = 1_000;
/** Between two lines in a log. */
const NOTICE_INTERVAL_MS = 5_000;

/** How far something is that takes long, on standard error: one line in place on a terminal, now and then one in a log. */
class SlowNotice implements Disposable {
  readonly #since = performance.now();
  readonly #block = process.stderr.isTTY ? new LiveBlock(process.stderr) : null;
  #said = Number.NEGATIVE_INFINITY;

  tell(text: string): void {
    const now = performance.now();
    if (now - this.#since < NOTICE_AFTER_MS) return;
    if (this.#block !== null) return this.#block.draw(text);
    if (now - this.#said < NOTICE_INTERVAL_MS) return;
    this.#said = now;
    process.stderr.write(`${text}\n`);
  }

  [Symbol.dispose](): void {
    this.#block?.clear();
  }
}

/** With a word on how far it is, where it takes longer. */
export async function withProgress<T>(work: (tell: (progress: Progress) => void) => Promise<T>): Promise<T> {
  using longer = new SlowNotice();
  return await work((progress) => longer.tell(progressText(progress)));
}

function progressText({ step, done, total }: Progress): string {
  if (step === "checking") return "checking …";
  const share = total === 0 ? 100 : Math.min(100, Math.floor((done / total) * 100));
  const of =
    step === "artifacts" || step === "replaying" ? `${number(done)} of ${number(total)}` : `${bytes(done)} of ${bytes(total)}`;
  return `${step} ${share} % (${of})`;
}
