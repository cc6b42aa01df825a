/**
 * Who of those that write here is alive. It takes a lock that the kernel frees at death, and this layer has none: whoever
 * opens the artifacts brings it along. The store's `Alive` is one.
 */
export interface Liveness {
  /** Takes a lock of this process's own; the token names it. */
  hold(): string;
  /** "dead" is proven; what is not known proves nothing. */
  probe(token: string): "alive" | "dead" | "unknown";
  /** It is dead, and nothing of it is left. */
  forget(token: string): void;
  /** Those that need no probing any more. */
  keepOnly(tokens: ReadonlySet<string>): void;
  /** Forgets the dead, but for these: something of them is left. */
  sweep(tokens: ReadonlySet<string>): void;
  close(): void;
}
