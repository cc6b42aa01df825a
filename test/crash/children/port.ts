import type { Message } from "../spawn.ts";

/** Options that every child gets; a script reads more of them as its own. */
export interface Told {
  path: string;
  effects: string;
  acks: string;
}

export function told<T>(): Told & T {
  return JSON.parse(process.argv[2] as string) as Told & T;
}

/** Resolves when the message has left this process: what comes next may be its end. */
export function say(type: string, data: object = {}): Promise<void> {
  return new Promise((resolve) => process.send?.({ type, ...data }, () => resolve()));
}

export function hear(type: string, call: (message: Message) => unknown): void {
  process.on("message", (message: Message) => {
    if (message.type === type) void call(message);
  });
}

/** The next message of this type. */
export function heard(type: string): Promise<Message> {
  return new Promise((resolve) => {
    const listen = (message: Message) => {
      if (message.type !== type) return;
      process.off("message", listen);
      resolve(message);
    };
    process.on("message", listen);
  });
}

// A child never outlives its test.
process.on("disconnect", () => process.kill(process.pid, "SIGKILL"));
