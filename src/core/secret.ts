/**
 * Stands for a value of which only the hash is known. The value itself is not kept, so that nothing can print it: not a
 * log, not an error, not a database.
 */
export class Secret {
  readonly hash: string;

  constructor(hash: string) {
    this.hash = hash;
  }

  toString(): string {
    return "[secret]";
  }

  toJSON(): string {
    return "[secret]";
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return "[secret]";
  }
}
