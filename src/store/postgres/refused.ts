/** Codes of our own, by which the server ends a statement, and with it the transaction: see the function `refuse`. */
export const REFUSED = {
  /** The database has gone back. */
  returned: "HF001",
  /** What was known of lanes or settings has changed. */
  stale: "HF002",
  /** Somebody was told that it was not committed. */
  closed: "HF003",
  /** A job was changed while it was being claimed. */
  moved: "HF004",
  /** A commit would not wait for the disk as it should. */
  unsynced: "HF005",
} as const;
