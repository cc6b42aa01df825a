import { armPoint } from "../store/points.ts";

/**
 * SIGKILL to oneself at a named point: `<operation>:<moment>`, the operation one of `enqueue`, `claim`, `renew`,
 * `settle`, `reclaim`, `migrate`, `checkpoint`, `progress`, `cancel`, `retry`, `prune`, `lock`, `register`, `unregister`,
 * `schedule`, `tick`, `sink`, `hold`, `advance`, `trim`, the moment `begun` (the transaction is open), `written` (all its
 * statements have run) or `committed` (nobody was told yet). `deliver:begun` and `deliver:written` are before and after
 * events go to a sink or subscriber.
 */
export function crashAt(point: string): void {
  armPoint(point);
}
