/** A SQLite handle: `DatabaseSync` of node:sqlite, `Database` of better-sqlite3. */
export interface SqliteHandle {
  prepare(sql: string): { run(...params: never[]): unknown };
  exec(sql: string): unknown;
}

/** What `hf.transaction` and `commit` hand out: the driver's own object, seen as what both drivers have in common. */
export interface TransactionHandle extends SqliteHandle {
  prepare(sql: string): {
    run: Bound<{ changes: number | bigint; lastInsertRowid: number | bigint }>;
    get: Bound<unknown>;
    all: Bound<unknown[]>;
  };
}
type SqlValue = string | number | bigint | null | Uint8Array;
interface Bound<Answer> {
  (...values: SqlValue[]): Answer;
  (named: Record<string, SqlValue>): Answer;
}

/** The transaction that records an attempt's success, open for rows of the user's own tables. */
export interface CommitTx {
  /** The connection, on SQLite; on PostgreSQL reading it throws TX_INVALID. */
  readonly db: TransactionHandle;
  /** Runs a statement, on PostgreSQL; on SQLite it throws TX_INVALID. */
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>;
}

/**
 * Writes rows of the user's own tables in the transaction that records the attempt's success: fenced, exactly once, or not
 * at all. On SQLite it is synchronous and uses `tx.db`; on PostgreSQL it may await `tx.query`.
 */
export type CommitRows = (tx: CommitTx) => void | Promise<void>;
