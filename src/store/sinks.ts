import type { Fence, ProcessId } from "../core/text/ids.ts";

/** Sinks and durable subscribers: how far each has got with what happened, and who delivers it. */
export interface SinkStore {
  /** Enters a sink or durable subscriber, for what happens from now on; one that is known keeps its place. Answers where it stands. */
  open(name: string, kind: string): Promise<number>;
  /** Takes the right to deliver, or, by its token, keeps it. Free is what nobody has, whose time is over, or whose holder is gone. Null: no such sink. */
  hold(name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null>;
  /** Everything up to `seq` is delivered; and the right to go on is kept. False, and nothing changes, when the token is not the sink's any more. */
  advance(name: string, token: Fence, seq: number, ttl: number): Promise<boolean>;
  /** A delivery failed; the right to try again is kept. */
  fail(name: string, token: Fence, error: string, ttl: number): Promise<boolean>;
  release(name: string, token: Fence): Promise<boolean>;
  /** Forgets a sink and its place: an operator's act. */
  drop(name: string): Promise<boolean>;
  all(): Promise<SinkView[]>;
}

/** `token` is null while somebody else delivers; `cursor` is how far it is, either way. */
export interface SinkHold {
  token: Fence | null;
  cursor: number;
}

export interface SinkView {
  name: string;
  /** "webhook", "subscriber", … */
  kind: string;
  /** Everything up to here is delivered. */
  cursor: number;
  /** How many events are still to be delivered, and when the oldest of them happened. */
  behind: number;
  oldestAt: number | null;
  /** Who delivers, or did last. */
  holder: ProcessId | null;
  /** In a row, with the last error. */
  failures: number;
  failedAt: number | null;
  error: string | null;
  deliveredAt: number | null;
  createdAt: number;
}
