import type { Declaration } from "../core/settings.ts";

/** What is said of queues, by programs and by operators. */
export interface QueueStore {
  /** What these definitions say about their queues and limits; the newest word counts. */
  declare(declarations: readonly Declaration[]): Promise<void>;
  /** A paused queue hands out nothing until it is resumed; what runs goes on. False when it is so already. */
  pause(queue: string): Promise<boolean>;
  resume(queue: string): Promise<boolean>;
}
