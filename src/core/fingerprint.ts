/** What the system says of a file, without its bytes. Times are nanoseconds, which a number cannot hold; so they are text. */
export interface FileStat {
  size: number;
  mtime: string;
  ctime: string;
  inode: string;
}

/** Which bytes a file had, and how to see cheaply that it still has them. Plain JSON: it is kept in the target's row. */
export interface Fingerprint extends FileStat {
  /** The sha-256 of its bytes, in hexadecimal. */
  hash: string;
  /** Milliseconds on the clock just before they were read. */
  hashedAt: number;
}

/** How coarse the times of a file system can be: two writes within it may leave the same time. */
const TICK = 2_000;

/** For a listing: whether the bytes have to be read to know what they are. A new time alone is no change, but a reason to look. */
export function needsHash(before: Fingerprint | null, now: FileStat): boolean {
  return before === null || before.size !== now.size || before.mtime !== now.mtime || isRacy(before);
}

/**
 * For the last look before a commit: whether the bytes may be others than those of the fingerprint. It sees what a listing
 * passes over: a time that was set back, and a file that was put in the place of another.
 */
export function mayHaveChanged(before: Fingerprint, now: FileStat): boolean {
  return !isSameStat(before, now) || isRacy(before);
}

export function isSameStat(a: FileStat, b: FileStat): boolean {
  return a.size === b.size && a.mtime === b.mtime && a.ctime === b.ctime && a.inode === b.inode;
}

/** The fingerprint alone, of an object that may have more than that. */
export function toFingerprint({ size, mtime, ctime, inode }: FileStat, hash: string, hashedAt: number): Fingerprint {
  return { size, mtime, ctime, inode, hash, hashedAt };
}

/** Written so shortly before it was hashed that one more write may have left the same time. So is one from the future. */
function isRacy({ mtime, hashedAt }: Fingerprint): boolean {
  return BigInt(mtime) >= BigInt(hashedAt - TICK) * 1_000_000n;
}
