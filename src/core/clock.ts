/** Time as the engine reads it. A test passes its own, and then no real time passes anywhere. */
export interface Clock {
  /** Wall time in whole milliseconds. */
  now(): number;
  /** Milliseconds that never jump; only differences mean anything. */
  monotonic(): number;
  /** Calls back once after `millis`; the returned function cancels. It does not keep the process alive. */
  after(millis: number, call: () => void): () => void;
  /** Said of what a server has to answer: a clock that is moved by hand stays where it is until then. */
  during?(work: Promise<unknown>): void;
}
