import type { WriteStream } from "node:tty";
import type { Command } from "commander";
import type { Build } from "../../core/build-view.ts";
import type { Log } from "../../runtime/log.ts";
import { writtenLog } from "../terminal/log.ts";
import { isJson } from "../terminal/output.ts";
import { LiveBlock } from "../terminal/live.ts";
import { Screen } from "../terminal/screen.ts";
import { Pace } from "./pace.ts";
import { progressBlock, progressLine } from "./progress.ts";

/** A build as it stands. */
export interface Seen {
  build: Build;
  /** The source is still being listed: nobody knows how much there is to do. */
  listing: boolean;
  /** That work on it. */
  processes: number;
}

/** How a run is shown while it lasts. */
export interface Show extends Disposable {
  readonly log: Log;
  /** A word to people; where programs read, it goes to standard error. */
  say(text: string): void;
  progress(seen: Seen): void;
  /** Its end: what programs read of it, or what people do. */
  end(build: Build, text: () => string): void;
}

/** No more often than this where nothing is drawn in place. */
const EACH = 1_000;
/** A drawing with a clock in it moves, also when nothing happens. */
const TICK = 500;

export function showOn(command: Command): Show {
  if (isJson(command)) return new Lines((seen) => JSON.stringify({ type: "progress", ...seen.build }), true);
  return Screen.fits(process.stdout) ? new Drawn(process.stdout) : new Lines(progressLine, false);
}

/** In a pipe, or for programs: a line now and then, and only when something has changed. */
class Lines implements Show {
  readonly log = writtenLog("info", (line) => void process.stderr.write(`${line}\n`));
  readonly #line: (seen: Seen, pace: Pace) => string;
  readonly #json: boolean;
  #pace = new Pace();
  #last = "";
  #at = Number.NEGATIVE_INFINITY;

  constructor(line: (seen: Seen, pace: Pace) => string, json: boolean) {
    this.#line = line;
    this.#json = json;
  }

  say(text: string): void {
    (this.#json ? process.stderr : process.stdout).write(`${text}\n`);
  }

  progress(seen: Seen): void {
    const now = performance.now();
    this.#pace.see(seen.build, now);
    if (now - this.#at < EACH) return;
    const counted = JSON.stringify([seen.build.state, seen.build.stages, seen.build.spent]);
    if (counted === this.#last) return;
    this.#last = counted;
    this.#at = now;
    process.stdout.write(`${this.#line(seen, this.#pace)}\n`);
  }

  end(build: Build, text: () => string): void {
    this.#pace = new Pace();
    this.#last = "";
    this.#at = Number.NEGATIVE_INFINITY;
    process.stdout.write(this.#json ? `${JSON.stringify({ type: "build", ...build })}\n` : `${text()}\n`);
  }

  [Symbol.dispose](): void {}
}

/** On a terminal: a few lines that are drawn again in place. */
class Drawn implements Show {
  readonly log = writtenLog("info", (line) => this.say(line));
  readonly #block: LiveBlock;
  readonly #timer: NodeJS.Timeout;
  #pace = new Pace();
  #seen: Seen | null = null;
  #since = performance.now();

  constructor(stream: WriteStream) {
    this.#block = new LiveBlock(stream);
    this.#timer = setInterval(() => this.#draw(), TICK).unref();
  }

  say(text: string): void {
    this.#block.write(text);
  }

  progress(seen: Seen): void {
    if (this.#seen === null) this.#since = performance.now();
    this.#seen = seen;
    this.#draw();
  }

  end(_build: Build, text: () => string): void {
    this.#seen = null;
    this.#pace = new Pace();
    this.#block.clear();
    process.stdout.write(`${text()}\n`);
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer);
    if (this.#seen !== null) this.#block.clear();
    this.#block[Symbol.dispose]();
  }

  #draw(): void {
    if (this.#seen === null) return;
    const now = performance.now();
    this.#pace.see(this.#seen.build, now);
    this.#block.draw(progressBlock(this.#seen, this.#pace, now - this.#since));
  }
}
