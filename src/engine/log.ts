import type { Log } from "../core/text/text.ts";

export type { Log };

/** `log: false`. */
export const silentLog: Log = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

/** The default: warnings and errors on standard error, the rest unsaid. */
export const quietLog: Log = {
  debug: () => {},
  info: () => {},
  warn: (message, data) => process.stderr.write(line("warn", message, data)),
  error: (message, data) => process.stderr.write(line("error", message, data)),
};

/** The same log, saying which job speaks. */
export class JobLog implements Log {
  readonly #log: Log;
  readonly #job: { id: string; name: string; attempt: number };

  constructor(log: Log, job: { id: string; name: string; attempt: number }) {
    this.#log = log;
    this.#job = job;
  }

  debug(message: string, data?: object): void {
    this.#log.debug(message, this.#about(data));
  }

  info(message: string, data?: object): void {
    this.#log.info(message, this.#about(data));
  }

  warn(message: string, data?: object): void {
    this.#log.warn(message, this.#about(data));
  }

  error(message: string, data?: object): void {
    this.#log.error(message, this.#about(data));
  }

  #about(data?: object): object {
    return { job: this.#job.id, name: this.#job.name, attempt: this.#job.attempt, ...data };
  }
}

function line(level: string, message: string, data?: object): string {
  return `holdfast ${level}: ${message}${data === undefined ? "" : ` ${JSON.stringify(data)}`}\n`;
}
