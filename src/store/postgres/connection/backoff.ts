/** In milliseconds. */
const SHORTEST = 50;
const LONGEST = 1_000;

/**
 * How long to wait before a server that was lost so many times is tried again: not at all at first, since often the
 * connection alone is gone; then longer and longer, and never quite as long as the others, who all come back at once.
 */
export function backoff(losses: number, random: () => number): number {
  if (losses === 0) return 0;
  return Math.min(LONGEST, SHORTEST * 2 ** (losses - 1)) * (0.5 + random() / 2);
}

/** What is watched. */
interface Patient {
  /** Whether an answer is waited for; and a number that grows with all that is heard. */
  signs(): { waits: boolean; heard: number };
  /** Whether it lives, as far as somebody else can tell. */
  examine(): Promise<boolean>;
  bury(): void;
}

/**
 * A server whose host has lost its power, or a firewall that has forgotten a connection, says nothing: the system would
 * wait for a quarter of an hour. So when no answer has come for a while, somebody else is asked. It may as well be that
 * the statement takes its time, which is nobody's business.
 */
export class Pulse {
  readonly #patient: Patient;
  readonly #every: number;
  #timer: NodeJS.Timeout | null = null;
  #heard = 0;
  #isExamined = false;

  constructor(patient: Patient, every: number) {
    this.#patient = patient;
    this.#every = every;
  }

  /** Said when an answer is waited for. It costs nothing while one is. */
  watch(): void {
    if (this.#timer !== null) return;
    this.#heard = this.#patient.signs().heard;
    this.#timer = setInterval(() => this.#look(), this.#every).unref();
  }

  stop(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }

  #look(): void {
    const { waits, heard } = this.#patient.signs();
    if (!waits) return this.stop();
    if (heard === this.#heard) void this.#examine(heard);
    this.#heard = heard;
  }

  async #examine(heard: number): Promise<void> {
    if (this.#isExamined) return;
    this.#isExamined = true;
    const lives = await this.#patient.examine();
    this.#isExamined = false;
    const signs = this.#patient.signs();
    if (!lives && signs.waits && signs.heard === heard) this.#patient.bury();
  }
}
