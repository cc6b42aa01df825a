/** The write-ahead log of a file, as it stands. */
export interface WalView {
  /** What of it is in use; the file itself may be longer, from before. */
  bytes: number;
  /** So much of that is in the database, too. */
  copied: number;
  /** Who reads an earlier state, so that the log cannot start anew; those that can be told. */
  readers: WalReader[];
}

export interface WalReader {
  pid: number;
  program: string | null;
  /** How much of the log came after what it reads. */
  behind: number;
}

/** From here on somebody should know: every reader gets slower with it, and it takes room. */
export const LONG_WAL = 64 * 1024 * 1024;
/** From here on something is wrong. */
export const VERY_LONG_WAL = 1024 * 1024 * 1024;

export function isLong({ bytes }: Pick<WalView, "bytes">): boolean {
  return bytes >= LONG_WAL;
}

/** `pid 4711 (report.ts), pid 4712`; null: nobody is known. */
export function sayReaders(readers: readonly WalReader[]): string | null {
  if (readers.length === 0) return null;
  return readers.map(({ pid, program }) => (program === null ? `pid ${pid}` : `pid ${pid} (${program})`)).join(", ");
}
