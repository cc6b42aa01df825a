export interface Log {
  debug(message: string, data?: object): void;
  info(message: string, data?: object): void;
  warn(message: string, data?: object): void;
  error(message: string, data?: object): void;
}

/** The default: troubles on standard error, the rest unsaid. */
export const quietLog: Log = {
  debug: () => {},
  info: () => {},
  warn: (message, data) => process.stderr.write(line("warn", message, data)),
  error: (message, data) => process.stderr.write(line("error", message, data)),
};

/** The same log, saying which job speaks. */
export function logFor(log: Log, job: { id: string; name: string; attempt: number }): Log {
  const about = (data?: object) => ({ job: job.id, name: job.name, attempt: job.attempt, ...data });
  return {
    debug: (message, data) => log.debug(message, about(data)),
    info: (message, data) => log.info(message, about(data)),
    warn: (message, data) => log.warn(message, about(data)),
    error: (message, data) => log.error(message, about(data)),
  };
}

function line(level: string, message: string, data?: object): string {
  return `holdfast ${level}: ${message}${data === undefined ? "" : ` ${JSON.stringify(data)}`}\n`;
}
