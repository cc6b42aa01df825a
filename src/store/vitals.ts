import type { WalView } from "../core/recovery/loss.ts";

/** How a store stands by itself, for whoever looks after it. Nothing is written. */
export interface VitalsStore {
  /** Null: there is none, or it is the server's own. Who reads is looked up where it is long, or where that is asked for. */
  wal(options?: { readers?: boolean }): Promise<WalView | null>;
  look(): Promise<Vitals>;
  /** What is asked again and again: cheap, whatever there is and was. */
  gauge(): Promise<Gauged>;
}

export interface Gauged {
  /** In bytes; unused: free for what comes. */
  size: { bytes: number; unused: number };
  /** Of running jobs: those that ran out, and that nobody has taken back yet. */
  expiredLeases: number;
}

export interface Vitals extends Pick<Gauged, "size"> {
  /** `SQLite 3.51.3 (node:sqlite)`. */
  engine: string;
  schema: { version: number; known: number };
  /** As they really are, on a connection of this store. */
  settings: Setting[];
  stuck: StuckJob[];
  /** The latest instant that is written down for something that has happened, in the store's time. */
  latest: number;
  now: number;
  /** On a server: transactions that are open for longer than a minute. They keep it from cleaning up. */
  transactions: { pid: number; program: string; since: number }[];
}

export interface Setting {
  name: string;
  value: string;
  /** What it should be; null: as it likes. */
  wanted: string | null;
}

export interface StuckJob {
  id: string;
  /** Its lease ran out and nobody took it back; it runs past its timeout; it waits, and nothing is known that it waits for. */
  why: "expired" | "overdue" | "forgotten";
  /** By how much, in milliseconds; null: for ever. */
  by: number | null;
}

/** A lease that ran out so long ago, or an attempt that is so long past its timeout, is nobody's any more. */
export const STUCK = 60_000;
/** So many are named. */
export const NAMED = 20;
